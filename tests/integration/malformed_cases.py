"""Malformed words and files -> what the one line says of them. `test_malformed` runs them."""

from __future__ import annotations

WORDS: list[tuple[str, str]] = [
    (
        "predict --model gpt2 --gpu h100 --mode nope",
        "--mode 'nope': expected one of forward, train, prefill, decode, generate",
    ),
    (
        "predict --model gpt2 --gpu h100 --batch x",
        "tilecast predict: argument --batch: 'x' is no whole number; expected digits such as 32",
    ),
    ("predict --model gpt2 --gpu h100 --batch", "tilecast predict: argument --batch: expected one argument"),
    ("predict --model gpt2 --gpu h100 --seq-len 0", "--seq-len 0: expected at least 1"),
    ("predict --model gpt2 --gpu h100 --seq-len -5", "--seq-len -5: expected at least 1"),
    ("predict --model gpt2 --gpu h100 --output-len -1", "--output-len -1: expected 0 or more"),
    ("predict --model gpt2 --gpu h100 --output-len 5", "--output-len 5: only --mode generate takes it"),
    ("predict --model gpt2 --gpu h100 --context-len -1 --mode decode", "--context-len -1: expected 0 or more"),
    (
        "predict --model gpt2 --gpu h100 --context-len 99999 --mode decode",
        "100000 tokens: gpt2 has learned positions for 1024; expected at most that",
    ),
    (
        "predict --model gpt2 --gpu h100 --prompt-lens x",
        "--prompt-lens 'x': expected whole numbers of tokens such as 12,400,3000",
    ),
    (
        "predict --model gpt2 --gpu h100 --prompt-lens -1",
        "--prompt-lens '-1': expected whole numbers of tokens such as 12,400,3000",
    ),
    (
        "predict --model gpt2 --gpu h100 --prompt-lens 1e3",
        "--prompt-lens '1e3': expected whole numbers of tokens such as 12,400,3000",
    ),
    ("predict --model gpt2 --gpu h100 --dtype", "tilecast predict: argument --dtype: expected one argument"),
    (
        "predict --model gpt2 --gpu h100 --dtype bf61",
        "unknown dtype 'bf61': expected one of fp32, tf32, fp16, bf16, fp8, fp8_block, int8,",
    ),
    (
        "predict --model gpt2 --gpu h100 --attention flesh",
        "--attention 'flesh': expected one of math, flash; nearest: flash",
    ),
    (
        "predict --model gpt2 --gpu h100 --execution egaer",
        "--execution 'egaer': expected one of eager, compile, cuda_graph, vllm, sglang,",
    ),
    (
        "predict --model gpt2 --gpu h100 --optimizer adamm --mode train",
        "--optimizer 'adamm': expected one of adam, adam_fused, sgd, none; nearest: adam",
    ),
    ("predict --model gpt2 --gpu h100 --micro-batch -1 --mode train", "--micro-batch -1: expected 0 or more"),
    (
        "predict --model gpt2 --gpu h100 --recompute some",
        "--recompute 'some': expected one of none, selective, full; nearest: none",
    ),
    ("predict --model gpt2 --gpu h100 --num-gpus 0", "--num-gpus 0: expected a whole number, at least 1"),
    (
        "predict --model gpt2 --gpu h100 --num-gpus x",
        "tilecast predict: argument --num-gpus: 'x' is no whole number; expected digits such as",
    ),
    ("predict --model gpt2 --gpu h100 --num-gpus 3", "--num-gpus 3: --tp 1 uses 1; expected --tp 3, or no --num-gpus"),
    ("predict --model gpt2 --gpu h100 --tp -1", "--tp -1: expected a whole number, at least 1"),
    (
        "predict --model gpt2 --gpu h100 --tp 1.5",
        "tilecast predict: argument --tp: '1.5' is no whole number; expected digits such as 32",
    ),
    ("predict --model gpt2 --gpu h100 --pp 2", "--pp 2: this parallelism is not built yet; expected 1"),
    ("predict --model gpt2 --gpu h100 --dp 0", "--dp 0: expected a whole number, at least 1"),
    ("predict --model gpt2 --gpu h100 --cp 2", "--cp 2: this parallelism is not built yet; expected 1"),
    ("predict --model gpt2 --gpu h100 --ep 2", "--ep 2: this parallelism is not built yet; expected 1"),
    (
        "predict --model gpt2 --gpu h100 --shard zero9",
        "--shard 'zero9': expected one of none, zero1, zero2, zero3, hsdp; nearest: zero3",
    ),
    (
        "predict --model gpt2 --gpu h100 --system nope",
        "unknown system 'nope': expected a name of a100-nvlink-pairs, a40-nvlink-pairs,",
    ),
    (
        "predict --model gpt2 --gpu h100 --launch-overhead 6parsecs",
        "--launch-overhead: '6parsecs' has the unit 'parsecs': expected a time such as \"3 us\"",
    ),
    (
        "predict --model gpt2 --gpu h100 --launch-overhead 1e9s",
        '--launch-overhead 1e+15 us: expected a time above 0 and below 1 ms, such as "6 us"',
    ),
    (
        "predict --model gpt2 --gpu h100 --step-overhead nan",
        "--step-overhead: 'nan' is not a quantity: expected a time such as \"3 us\"",
    ),
    (
        "predict --model gpt2 --gpu h100 --step-overhead 1h",
        "--step-overhead: '1h' has the unit 'h': expected a time such as \"3 us\"",
    ),
    (
        "predict --model gpt2 --gpu h100 --artifacts nope",
        "no estimators at 'nope': expected a folder that `tilecast train --out` wrote",
    ),
    ("predict --model gpt2 --gpu h100 --top -1", "--top -1: expected 0 or more"),
    (
        "predict --model gpt2 --gpu h100 --top x",
        "tilecast predict: argument --top: 'x' is no whole number; expected digits such as 32",
    ),
    ("predict --model gpt2 --gpu h100 --html", "tilecast predict: argument --html: expected one argument"),
    (
        "predict --model gpt2 --gpu h100 --html folder",
        "--html 'folder': is there, and not a plain file; expected a file to write",
    ),
    ("predict --model gpt2 --gpu h100 --trace folder/", "--trace 'folder/': expected the name of a file"),
    (
        "predict --model gpt2 --gpu h100 --html a.html --trace a.html",
        "--trace 'a.html': is the file of --html, too; expected another one",
    ),
    ("predict --model gpt2 --gpu h100 --frobnicate", "tilecast: unrecognized arguments: --frobnicate"),
    ("predict --model gpt2 --gpu h100 extra words", "tilecast: unrecognized arguments: extra words"),
    ("predict --model gpt2 --gpu h100 --json=5", "tilecast predict: argument --json: ignored explicit argument '5'"),
    (
        "predict --model gpt2 --gpu h100 --mode generate --output-len 99999999",
        "--output-len 99999999: expected at most 1,000,000",
    ),
    (
        "predict --model gpt2 --gpu h100 --mode decode --batch 1000000000",
        "--batch 1000000000: expected at most 10,000,000",
    ),
    (
        "predict --model gpt2 --gpu h100 --prompt-lens 1 --mode decode --context-len 5",
        "--context-len 5: --prompt-lens gives every sequence's length; leave --context-len out",
    ),
    (
        "predict --model gpt2 --gpu h100 --seq-len 5 --prompt-lens 4",
        "--seq-len 5: --prompt-lens gives every sequence's length; leave --seq-len out",
    ),
    ("predict", "tilecast predict: the following arguments are required: --model, --gpu"),
    ("predict --model gpt2", "tilecast predict: the following arguments are required: --gpu"),
    ("predict --gpu h100", "tilecast predict: the following arguments are required: --model"),
    ("nope", "unknown verb 'nope': expected one of predict, compare, gpus, models, microbench,"),
    ("gpus zzz", "unknown GPU 'zzz': expected a name of `tilecast gpus` or a YAML file"),
    ("gpus a b", "tilecast: unrecognized arguments: b"),
    ("models zzz", "unknown model 'zzz': expected a name of `tilecast models` or a path to a config.json"),
    ("models a b", "tilecast: unrecognized arguments: b"),
    ("completion", "tilecast completion: the following arguments are required: SHELL"),
    ("completion bash zzz", "unknown program 'zzz': expected one of tilecast, predict"),
    ("dataset", "tilecast dataset: the following arguments are required: ACTION"),
    ("dataset frob", "tilecast dataset: argument ACTION: invalid choice: 'frob' (choose from 'import',"),
    ("evaluate", "tilecast evaluate: the following arguments are required: WHAT"),
    ("evaluate frob x", "tilecast evaluate: argument WHAT: invalid choice: 'frob' (choose from 'kernels',"),
    ("evaluate workloads nope.csv", "cannot read nope.csv: No such file or directory; expected a CSV file of a suite"),
    ("train", "tilecast train: the following arguments are required: --data, --out"),
    ("train --data x", "tilecast train: the following arguments are required: --out"),
    ("calibrate", "tilecast calibrate: the following arguments are required: --gpu, --data, --out"),
    ("gpus --jsn", "tilecast: unrecognized arguments: --jsn"),
    ("runs list x", "tilecast: unrecognized arguments: x"),
    (
        "compare --model gpt2 --gpu h100 --price h100=",
        "--price h100=: 'h100=' is no price; expected NAME=DOLLARS, such as h100=2.99",
    ),
    (
        "compare --model gpt2 --gpu h100 --price h100=nan",
        "--price h100=nan: 'nan' is no price of h100; expected dollars an hour of one GPU above",
    ),
    (
        "compare --model gpt2 --gpu h100 --price h100=inf",
        "--price h100=inf: 'inf' is no price of h100; expected dollars an hour of one GPU above",
    ),
    (
        "compare --model gpt2 --gpu h100 --price h100=1e9",
        "--price h100=1e9: '1e9' is no price of h100; expected dollars an hour of one GPU above",
    ),
    (
        "compare --model gpt2 --gpu h100 --price h100=1,h100-sxm=2",
        "--price h100=1,h100-sxm=2: h100-sxm has two prices; expected one",
    ),
    (
        "compare --model gpt2 --gpu h100 --price zzz=1",
        "unknown GPU 'zzz': expected in --price zzz=1 a GPU of the comparison or a name of",
    ),
    ("compare --model gpt2 --gpu h100 --out x.txt", "--out x.txt: expected a file that ends in .svg, .png, .pdf"),
    ("compare --model , --gpu h100", "--model ',': expected names with one comma between them"),
    ("compare --model gpt2 --gpu all,h100", "unknown GPU 'all': expected a name of `tilecast gpus` or a YAML file"),
    (
        "predict --model gpt2 --gpu /dev/zero",
        "cannot read GPU file '/dev/zero': is a device, not a plain file; expected a YAML file",
    ),
    (
        "predict --model gpt2 --gpu /proc/kmsg",
        "cannot read GPU file '/proc/kmsg': has nothing to read yet; expected a YAML file of one",
    ),
    (
        "predict --model gpt2 --gpu /dev/null",
        "cannot read GPU file '/dev/null': is a device, not a plain file; expected a YAML file",
    ),
    (
        "predict --model gpt2 --gpu /",
        "cannot read GPU file '/': is a folder, not a plain file; expected a YAML file of one GPU",
    ),
    (
        "predict --model /dev/zero --gpu h100",
        "unknown model '/dev/zero': expected a name of `tilecast models` or a path to a",
    ),
    (
        "predict --model /dev/null --gpu h100",
        "unknown model '/dev/null': expected a name of `tilecast models` or a path to a",
    ),
    (
        "predict --model gpt2 --gpu h100 --artifacts /dev/zero",
        "no estimators at '/dev/zero': expected a folder that `tilecast train --out` wrote",
    ),
    (
        "predict --model llama-3.1-8b --gpu h100 --tp 2 --system /dev/zero",
        "cannot read system file '/dev/zero': is a device, not a plain file; expected a YAML",
    ),
    (
        "compare --model gpt2 --gpu h100 --price /dev/zero",
        "cannot read --price /dev/zero: is a device, not a plain file; expected",
    ),
    (
        "compare --model gpt2 --gpu h100,/dev/zero",
        "cannot read GPU file '/dev/zero': is a device, not a plain file; expected a YAML file",
    ),
    ("gpus /dev/zero", "cannot read GPU file '/dev/zero': is a device, not a plain file; expected a YAML file"),
    ("models /dev/zero", "unknown model '/dev/zero': expected a name of `tilecast models` or a path to a"),
    (
        "evaluate workloads /dev/zero",
        "cannot read /dev/zero: is a device, not a plain file; expected a CSV file of a suite",
    ),
    ("evaluate kernels /dev/zero", "/dev/zero has the suffix '': expected .parquet or .csv"),
    ("calibrate --gpu h100 --data /dev/zero --out new", "/dev/zero has the suffix '': expected .parquet or .csv"),
    ("train --data /dev/zero --out new", "/dev/zero has the suffix '': expected .parquet or .csv"),
    ("dataset describe /dev/zero", "/dev/zero has the suffix '': expected .parquet or .csv"),
    ("dataset import vidur /dev/zero --out x.csv", "/dev/zero is not a folder: expected the root of the vidur data"),
    (
        "dataset import nope folder --out x.csv",
        "unknown data source 'nope': expected one of neusight, aiconfigurator, vidur, vtrain,",
    ),
    ("dataset import vidur folder --out x.csv", "/tmp/fzggs1wq6x/folder holds no vidur data: expected"),
    ("dataset import vtrain folder --out x.csv", "/tmp/fzjkpwq58m/folder holds no vtrain data: expected"),
    ("dataset import llmcompass folder --out x.csv", "/tmp/fz4xprzfue/folder holds no llmcompass data: expected"),
    (
        "dataset import aiconfigurator folder --out x.csv",
        "/tmp/fz4x3qufd3/folder holds no aiconfigurator data: expected",
    ),
    (
        "dataset import microbench folder --out x.csv",
        "/tmp/fzyruufkex/folder holds no microbench data: expected <gpu>/<operator>/<software",
    ),
]
CONTROL: list[tuple[list[str], str]] = [
    (
        ["predict", "--model", "\x1b[31mr", "--gpu", "h100"],
        "unknown model '\\x1b[31mr': expected a name of `tilecast models` or a path to a",
    ),
    (
        ["predict", "--model", "gpt2", "--gpu", "\x1b[31mr"],
        "unknown GPU '\\x1b[31mr': expected a name of `tilecast gpus` or a YAML file",
    ),
    (
        ["predict", "--model", "gpt2", "--gpu", "\u202eabc"],
        "unknown GPU '\\u202eabc': expected a name of `tilecast gpus` or a YAML file",
    ),
    (["\x1b[31m"], "unknown verb '\\x1b[31m': expected one of predict, compare, gpus, models, microbench,"),
    (
        ["predict", "--model", "a\nb", "--gpu", "h100"],
        "unknown model 'a\\nb': expected a name of `tilecast models` or a path to a config.json",
    ),
    (
        ["predict", "--model", "gpt2", "--gpu", "h100", "--dtype", "\x1b[31m"],
        "unknown dtype '\\x1b[31m': expected one of fp32, tf32, fp16, bf16, fp8, fp8_block, int8,",
    ),
    (
        ["models", "\x9b31m"],
        "unknown model '\\x9b31m': expected a name of `tilecast models` or a path to a config.json",
    ),
    (
        ["compare", "--model", "gpt2", "--gpu", "\x1b[31m"],
        "unknown GPU '\\x1b[31m': expected a name of `tilecast gpus` or a YAML file",
    ),
    (
        ["evaluate", "kernels", "\x07.csv"],
        "cannot read \\x07.csv: No such file or directory; expected a file of measurements",
    ),
]
MICROBENCH: list[tuple[str, str]] = [
    ("plan --ops nope", "unknown operator 'nope': expected one of attention, collective, conv, copy,"),
    ("plan --dtypes bf61", "unknown dtype 'bf61': expected one of fp64, fp32, tf32, fp16, bf16, fp8, int8, int4,"),
    ("plan --budget x", "'x' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h"),
    ("plan --budget 0s", "'0s' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h"),
    ("plan --max-cases 0", "--max-cases 0: expected at least 1"),
    ("plan --max-cases x", "microbench plan: argument --max-cases: 'x' is no whole number; expected digits such as"),
    ("plan --device tpu", "microbench plan: argument --device: invalid choice: 'tpu' (choose from 'cuda', 'cpu')"),
    ("plan --gpu zzz", "unknown GPU 'zzz': expected a name of `tilecast gpus` or a YAML file"),
    ("plan --gpu /dev/zero", "cannot read GPU file '/dev/zero': is a device, not a plain file; expected a YAML file"),
    ("plan --threads -1", "--threads -1: expected 0 to 4096"),
    ("plan --case-seconds x", "'x' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h"),
    ("plan --rows 5", "5 rows to calibrate with: expected 16 to 256"),
    ("plan --calibration --rows 9999", "9999 rows to calibrate with: expected 16 to 256"),
    ("plan --sweeps folder", "folder holds no sweep: expected files such as gemm.yaml"),
    ("plan --sweeps /dev/zero", "--sweeps /dev/zero: expected a folder of sweep files"),
    ("plan --out folder", "--out folder: is there, and no plain file; expected a file to write"),
    ("collect --device cpu --out new --noise 2", "--noise 2.0: expected a share between 0 and 1, such as 0.01"),
    ("collect --device cpu --out new --min-samples 0", "--min-samples 0: expected at least 1"),
    (
        "collect --device cpu --out new --case-timeout x",
        "'x' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h",
    ),
    (
        "collect --device cpu --out new --wait x",
        "'x' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h",
    ),
    ("collect --device cpu --out new --lock-clocks 5", "'5' has no unit: expected a frequency such as \"1980 MHz\""),
    (
        "collect --device cpu --out new --lock-clocks 1GHz",
        "--lock-clocks: the clock of a processor cannot be locked: expected an NVIDIA GPU",
    ),
    (
        "collect --device cpu --out new --cases nope",
        "--cases nope: cannot read nope: No such file or directory; expected a JSON file",
    ),
    (
        "collect --device cpu --out new --cases /dev/zero",
        "--cases /dev/zero: cannot read /dev/zero: is a device, not a plain file; expected a",
    ),
    ("collect --device cpu --out new --calibration 5", "5 rows to calibrate with: expected 16 to 256"),
    (
        "collect --device cpu --out new --cases nope --ops gemm",
        "--cases: names the cases already; expected no --ops and no --dtypes beside it",
    ),
    ("collect --device cpu --out new --threads 99999", "--threads 99999: expected 0 to 2"),
    ("collect --device cpu --out file", "--out file: is a file; expected a folder"),
    ("launch-overhead --out x.txt", "--out x.txt: expected a file that ends in .yaml"),
    ("launch-overhead --budget x", "'x' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h"),
    ("validate nope", "nope is no folder: expected a data set of microbench collect"),
    ("status nope", "nope is no folder: expected a data set of microbench collect"),
    ("status folder", "folder holds no measurements: expected <gpu>/<op>/<software stack>/measurements.parquet"),
    ("status /dev/zero", "/dev/zero is no folder: expected a data set of microbench collect"),
    (
        "compare folder folder",
        "folder holds no measurements: expected <gpu>/<op>/<software stack>/measurements.parquet",
    ),
    ("workload nope --out x.csv", "cannot read nope: No such file or directory; expected a CSV file of a suite"),
    (
        "workload /dev/zero --out x.csv",
        "cannot read /dev/zero: is a device, not a plain file; expected a CSV file of a suite",
    ),
    ("workload file --out x.txt", "--out x.txt: expected a file that ends in .csv"),
]
SWEEPS: list[tuple[str, str]] = [
    ("", "the sweep sw/gemm.yaml has no launcher or no list of groups"),
    ("[]", "the sweep sw/gemm.yaml has no launcher or no list of groups"),
    ("a: 1", "the sweep sw/gemm.yaml has no launcher or no list of groups"),
    ("launcher: gemm", "the sweep sw/gemm.yaml has no launcher or no list of groups"),
    (
        "launcher: nope\ngroups: []",
        "the sweep sw/gemm.yaml: no launcher 'nope': expected one of gemm, attention, softmax,",
    ),
    ("launcher: gemm\ngroups: [5]", "the sweep sw/gemm.yaml, group 5: expected a name and dtypes"),
    ("launcher: gemm\ngroups: [{name: a}]", "the sweep sw/gemm.yaml, group 'a': expected a name and dtypes"),
    ("launcher: gemm\ngroups: [{name: a, dtypes: [bf16]}]", "the sweep sw/gemm.yaml, group 'a': no value for m, n, k"),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: 5, fields: {m: 1, n: 1, k: 1}}]",
        "the sweep sw/gemm.yaml makes no cases: TypeError: 'int' object is not iterable",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf61], fields: {m: 1, n: 1, k: 1}}]",
        "unknown dtype 'bf61': expected one of fp64, fp32, tf32, fp16, bf16, fp8, int8, int4,",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: 5}]",
        "the sweep sw/gemm.yaml makes no cases: TypeError: 'int' object is not a mapping",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {m: x, n: 1, k: 1}}]",
        "the sweep sw/gemm.yaml makes no cases: TypeError: can't multiply sequence by non-int of",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {m: -1, n: 1, k: 1}}]",
        "the sweep sw/gemm.yaml makes no cases: ValueError: sizes are above zero, not {'m': -1,",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {log: [1]}}}]",
        "the sweep sw/gemm.yaml makes no cases: ValueError: not enough values to unpack",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {log: [1, x]}}}]",
        "the sweep sw/gemm.yaml makes no cases: TypeError: unsupported operand type(s) for /:",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {choice: []}}}]",
        "the sweep sw/gemm.yaml makes no cases: IndexError: list index out of range",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {same: zzz}}}]",
        "the sweep sw/gemm.yaml makes no cases: KeyError: 'zzz'",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {divide: zzz, by: [2]}}}]",
        "the sweep sw/gemm.yaml makes no cases: KeyError: 'zzz'",
    ),
    (
        "launcher: gemm\nlauncher: gemm\ngroups: []",
        "the sweep sw/gemm.yaml line 2: broken YAML: 'launcher' stands twice, expected once",
    ),
]
CASE_FILES: list[tuple[str, str]] = [
    ("", "--cases c.json: c.json: line 1: not valid JSON (Expecting value)"),
    ("{}", "--cases c.json: expected a file of `microbench plan --calibration --out`"),
    ("[]", "--cases c.json: c.json: expected a JSON object, found list"),
    ('{"format":"microbench-cases"}', "--cases c.json: expected a file of `microbench plan --calibration --out`"),
    (
        '{"format":"microbench-cases","cases":5}',
        "--cases c.json: expected a file of `microbench plan --calibration --out`",
    ),
    (
        '{"format":"microbench-cases","cases":[5]}',
        "--cases c.json: expected a file of `microbench plan --calibration --out`",
    ),
    ('{"format":"microbench-cases","format":"x"}', "--cases c.json: c.json: key 'format' stands twice; expected once"),
]
WORKLOADS: list[tuple[str, str]] = [
    ("", "the suite s.csv has no rows"),
    ("config,mode,dtype,global_batch,seq_len\n", "the suite s.csv has no rows"),
    (
        "config,mode,dtype,global_batch,seq_len\ngpt2,forward,bf16,x,5\n",
        "the suite s.csv, row 1: global_batch 'x': expected a whole number above zero",
    ),
    (
        "config,mode,dtype,global_batch,seq_len\ngpt2,forward,bf61,1,5\n",
        "the suite s.csv, row 1: unknown dtype 'bf61': expected one of fp64, fp32, tf32, fp16,",
    ),
    (
        "config,mode,dtype,global_batch,seq_len\ngpt2,fwd,bf16,1,5\n",
        "the suite s.csv, row 1: mode 'fwd': expected one of forward, train, prefill, decode",
    ),
    (
        "config,mode,dtype,global_batch,seq_len\ngpt2,forward,bf16,1,-5\n",
        "the suite s.csv, row 1: seq_len '-5': expected a whole number above zero",
    ),
    (
        "config,mode,dtype,global_batch,seq_len\ngpt2,forward,bf16,٣,5\n",
        "the suite s.csv, row 1: global_batch '٣': expected a whole number above zero",
    ),
    (
        "config,mode,dtype,global_batch,seq_len\ngpt2,forward,bf16\n",
        "s.csv, row 1: 3 cells; expected 5, one for every column",
    ),
    (
        "config,mode,dtype,global_batch,dtype\ngpt2,forward,bf16,1,5\n",
        "s.csv: column 'dtype' stands twice; expected once",
    ),
    (
        "config,mode,dtype,global_batch,seq_len\ngpt2,decode,bf16,1,5\n",
        "the suite s.csv, row 1: decode needs a context_len",
    ),
    (
        "config,mode,dtype,global_batch,seq_len\nnope,forward,bf16,1,5\n",
        "cannot read configs/nope.json: No such file or directory; expected a JSON file",
    ),
    (
        "config,mode,dtype,global_batch,seq_len\ntwo,forward,bf16,1,5\n",
        "configs/two.json: key 'a' stands twice; expected once",
    ),
    (
        "config,mode,dtype,global_batch,seqlen\ngpt2,forward,bf16,1,5\n",
        "s.csv: unknown column 'seqlen'; nearest: seq_len",
    ),
]
GPU_LINES: list[tuple[str, str]] = [
    ("architecture: hoper", "GPU file 'g.yaml': architecture is 'hoper': expected one of pascal, volta, turing,"),
    (
        "architecture: hopper\nnew_generation: true",
        "GPU file 'g.yaml': new_generation is true, and architecture 'hopper' is known: expected",
    ),
    (
        "architecture: rubin\nnew_generation: maybe",
        "GPU file 'g.yaml': new_generation is 'maybe': expected true or false",
    ),
    ("vendor: amd", "GPU file 'g.yaml': vendor is 'amd': expected nvidia, whose architecture hopper is"),
    ("vendor: nvidai", "GPU file 'g.yaml': vendor is 'nvidai': expected nvidia, whose architecture hopper is"),
    ('compute_capability: "8.0"', "GPU file 'g.yaml': compute_capability is '8.0': expected 9.x of hopper"),
    ('name: "\\e[31mred"', "GPU file 'g.yaml': name is not plain text of 1 to 100 characters"),
    ('name: "a\\nb"', "GPU file 'g.yaml': name is not plain text of 1 to 100 characters"),
    ('aliases: ["\\e[31m"]', "GPU file 'g.yaml': aliases is not a list of plain names such as [h100]"),
    ("aliases: [[1]]", "GPU file 'g.yaml': aliases is not a list of plain names such as [h100]"),
    ("aliases: h100", "GPU file 'g.yaml': aliases is not a list of plain names such as [h100]"),
    ('memory_type: "\\e]0;x\\a"', "GPU file 'g.yaml': memory_type is not plain text of 1 to 100 characters"),
    ("id: no", "GPU file 'g.yaml': id is not plain text of 1 to 100 characters"),
    ("id: 2020-01-01", "GPU file 'g.yaml': id is not plain text of 1 to 100 characters"),
    ("sm_count: 1:30", "GPU file 'g.yaml': sm_count: '1:30' has the unit ':30': expected a count such as \"132\""),
    ("sm_count: 0x84", "GPU file 'g.yaml': sm_count: '0x84' has the unit 'x84': expected a count such as \"132\""),
    (
        "sm_count: {value: 132, value: 5}",
        "GPU file 'g.yaml' line 113: broken YAML: 'value' stands twice, expected once",
    ),
    ("sm_count: {source: x}", "GPU file 'g.yaml': missing sm_count"),
    ("l2: 50 MB MB", "GPU file 'g.yaml': l2: '50 MB MB' has the unit 'MB MB': expected a bytes such as \"80"),
    (
        "peak_flops: {vector: {fp32: {value: [1]}}}",
        "GPU file 'g.yaml': peak_flops.vector.fp32: '[1]' is not a quantity: expected a rate",
    ),
    (
        "peak_flops: {vector: 5}",
        "GPU file 'g.yaml': missing peak_flops.vector.fp32; peak_flops.vector: expected vector",
    ),
    ('"\\e[31mxx": 1', "GPU file 'g.yaml': unknown field '\\x1b[31mxx'"),
    ("notes: &n [*n]", "GPU file 'g.yaml' line 116: broken YAML: 'n' holds itself"),
    ("notes: *nobody", "GPU file 'g.yaml' line 116: broken YAML: found undefined alias"),
    ("<<: 5", "GPU file 'g.yaml' line 116: broken YAML: expected a mapping or list of mappings for"),
    ("? [a, b]\n: 1", "GPU file 'g.yaml' line 116: broken YAML: found unhashable key"),
]
GPU_TEXTS: list[tuple[str, str]] = [
    ("", "GPU file 'g.yaml': expected fields such as 'sm_count: ...', found nothing"),
    ("null", "GPU file 'g.yaml': expected fields such as 'sm_count: ...', found nothing"),
    ("- a", "GPU file 'g.yaml': expected fields such as 'sm_count: ...', found list"),
    ("---\na: 1\n---\nb: 2", "GPU file 'g.yaml' line 3: broken YAML: but found another document"),
    ("a: b: c", "GPU file 'g.yaml' line 1: broken YAML: mapping values are not allowed in this context"),
    ("\ta: 1", "GPU file 'g.yaml' line 1: broken YAML: found character that cannot start any token"),
    ("{a: 1}: 2", "GPU file 'g.yaml' line 1: broken YAML: found unhashable key"),
    ("\x1b[31m: 1", "GPU file 'g.yaml': broken YAML: <unicode string> 0 27 ? control characters are not"),
    ("%YAML 9.9\n---\na: 1", "GPU file 'g.yaml' line 1: broken YAML: found incompatible YAML document"),
]
SYSTEM_LINES: list[tuple[str, str]] = [
    ("gpus_per_node: 0", "system file 's.yaml': gpus_per_node: '0' is not above zero: expected a count such as"),
    ("gpus_per_node: 1.5", "system file 's.yaml': gpus_per_node: '1.5' is not a whole number: expected a count such"),
    ("gpus_per_node: 1", "--tp 2: a node of dgx-h100 has 1 GPUs, and tp over nodes is not built; expected at most"),
    ("link: nvlink", "system file 's.yaml': link is 'nvlink': expected one of nvswitch, mesh, pair, pcie;"),
    ("link: [a]", "system file 's.yaml': link is ['a']: expected one of nvswitch, mesh, pair, pcie;"),
    ("link_bandwidth: 450", "system file 's.yaml': link_bandwidth: '450' has no unit: expected a bandwidth such as"),
    (
        "link_bandwidth: -1 GB/s",
        "system file 's.yaml': link_bandwidth: '-1 GB/s' is not a quantity: expected a bandwidth",
    ),
    ("link_latency: 5 h", "system file 's.yaml': link_latency: '5 h' has the unit 'h': expected a time such as \"3"),
    ('id: "\\e[31m"', "system file 's.yaml': id is not plain text of 1 to 100 characters"),
    ('name: "\\e[31m"', "system file 's.yaml': name is not plain text of 1 to 100 characters"),
    ("gpus: h100", "system file 's.yaml': gpus is not a list of plain names such as [h100-sxm]"),
    ("gpus: [[1]]", "system file 's.yaml': gpus is not a list of plain names such as [h100-sxm]"),
    ('aliases: ["\\e[1m"]', "system file 's.yaml': aliases is not a list of plain names such as [h100-sxm]"),
    ("in_switch_reduction: 5", "system file 's.yaml': in_switch_reduction: expected true or false, and true only for"),
    ("foo: 1", "system file 's.yaml': unknown field 'foo'"),
    ("by_ranks: {2: 5 GB/s}", "system file 's.yaml': by_ranks: expected a mapping such as {2: ..., 4: ...}, for link"),
    (
        "gpus_per_node: 8\ngpus_per_node: 4",
        "system file 's.yaml' line 26: broken YAML: 'gpus_per_node' stands twice, expected once",
    ),
]
CONFIG_TEXTS: list[tuple[str, str]] = [
    ("", "m.json: line 1: not valid JSON (Expecting value)"),
    ("null", "m.json: expected a JSON object, found NoneType"),
    ("5", "m.json: expected a JSON object, found int"),
    ('"x"', "m.json: expected a JSON object, found str"),
    ("{", "m.json: line 1: not valid JSON (Expecting property name enclosed in double quotes)"),
    ("{'a':1}", "m.json: line 1: not valid JSON (Expecting property name enclosed in double quotes)"),
    ("{}x", "m.json: line 1: not valid JSON (Extra data)"),
    ("{}", "m.json: missing 'model_type', expected one of bert, bloom, deepseek_v2, deepseek_v3,"),
    ('{"model_type": null}', "m.json: missing 'model_type', expected one of bert, bloom, deepseek_v2, deepseek_v3,"),
    ('{"model_type": ""}', "m.json: unknown model_type '': expected one of bert, bloom, deepseek_v2, deepseek_v3,"),
    (
        '{"model_type": "\\u001b[31m"}',
        "m.json: unknown model_type '\\x1b[31m': expected one of bert, bloom, deepseek_v2,",
    ),
    ('{"a": 1, "a": 2}', "m.json: key 'a' stands twice; expected once"),
    ('{"a": {"b": 1, "b": 2}}', "m.json: key 'b' stands twice; expected once"),
]
