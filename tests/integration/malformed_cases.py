"""Malformed words and files -> what the one line says of them. `test_malformed` runs them."""

from __future__ import annotations

WORDS: list[tuple[str, str]] = [
    (
        "predict --model gpt2 --gpu h100 --mode nope",
        "--mode 'nope': expected one of forward, train, prefill, decode, generate",
    ),
    (
        "predict --model gpt2 --gpu h100 --batch x",
        "tilecast predict: argument --batch: 'x' is not a whole number; expected digits such as 32",
    ),
    ("predict --model gpt2 --gpu h100 --batch", "tilecast predict: argument --batch: expected one argument"),
    ("predict --model gpt2 --gpu h100 --seq-len 0", "--seq-len 0: expected at least 1"),
    ("predict --model gpt2 --gpu h100 --seq-len -5", "--seq-len -5: expected at least 1"),
    ("predict --model gpt2 --gpu h100 --output-len -1", "--output-len -1: expected 0 or more"),
    ("predict --model gpt2 --gpu h100 --output-len 5", "--output-len 5: only --mode generate takes it"),
    ("predict --model gpt2 --gpu h100 --context-len -1 --mode decode", "--context-len -1: expected 0 or more"),
    (
        "predict --model gpt2 --gpu h100 --context-len 99999 --mode decode",
        "100000 tokens: gpt2 has 1024 learned positions; expected at most 1024",
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
        "unknown dtype 'bf61': expected one of fp32, tf32, fp16, bf16, fp8, fp8_static, fp8_dynamic, fp8_block,",
    ),
    (
        "predict --model gpt2 --gpu h100 --attention flesh",
        "--attention 'flesh': expected one of math, flash; nearest: flash",
    ),
    (
        "predict --model gpt2 --gpu h100 --execution egaer",
        "--execution 'egaer': expected one of eager, compile, cuda_graph,",
    ),
    (
        "predict --model gpt2 --gpu h100 --optimizer adamm --mode train",
        "--optimizer 'adamm': expected one of adam, adam_fused, adam_8bit, sgd, none; nearest: adam",
    ),
    ("predict --model gpt2 --gpu h100 --micro-batch -1 --mode train", "--micro-batch -1: expected 0 or more"),
    (
        "predict --model gpt2 --gpu h100 --recompute some",
        "--recompute 'some': expected one of none, selective, full, full:N-of-L; nearest: none",
    ),
    ("predict --model gpt2 --gpu h100 --num-gpus 0", "--num-gpus 0: expected at least 1"),
    (
        "predict --model gpt2 --gpu h100 --num-gpus x",
        "tilecast predict: argument --num-gpus: 'x' is not a whole number; expected digits such as",
    ),
    ("predict --model gpt2 --gpu h100 --num-gpus 3", "--num-gpus 3: --tp 1 uses 1; expected --tp 3, or no --num-gpus"),
    ("predict --model gpt2 --gpu h100 --tp -1", "--tp -1: expected at least 1"),
    (
        "predict --model gpt2 --gpu h100 --tp 1.5",
        "tilecast predict: argument --tp: '1.5' is not a whole number; expected digits such as 32",
    ),
    ("predict --model gpt2 --gpu h100 --pp 2", "--pp 2: not built yet for --mode forward; expected --mode train"),
    ("predict --model gpt2 --gpu h100 --dp 0", "--dp 0: expected at least 1"),
    ("predict --model gpt2 --gpu h100 --cp 2", "--cp 2: not built yet for --mode forward; expected --mode train"),
    ("predict --model gpt2 --gpu h100 --ep 2", "--ep 2: not built yet for --mode forward; expected --mode train"),
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
        "no estimators at 'nope' (--artifacts): expected a folder that `tilecast train --out` wrote",
    ),
    ("predict --model gpt2 --gpu h100 --top -1", "--top -1: expected 0 or more"),
    (
        "predict --model gpt2 --gpu h100 --top x",
        "tilecast predict: argument --top: 'x' is not a whole number; expected digits such as 32",
    ),
    ("predict --model gpt2 --gpu h100 --html", "tilecast predict: argument --html: expected one argument"),
    (
        "predict --model gpt2 --gpu h100 --html folder",
        "--html 'folder': exists and is not a plain file; expected a file to write",
    ),
    ("predict --model gpt2 --gpu h100 --trace folder/", "--trace 'folder/': expected the name of a file"),
    (
        "predict --model gpt2 --gpu h100 --html a.html --trace a.html",
        "--trace 'a.html': is the file of --html, too; expected another one",
    ),
    ("predict --model gpt2 --gpu h100 --frobnicate", "tilecast predict: no option --frobnicate"),
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
    ("nope", "unknown verb 'nope': expected one of predict, serve, compare, plan,"),
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
    ("calibrate", "tilecast calibrate: the following arguments are required: --out"),
    ("gpus --jsn", "tilecast gpus: no option --jsn; nearest: --json"),
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
    ("compare --model gpt2 --gpu h100 --out x.txt", "--out x.txt: expected a file that ends in .svg"),
    ("compare --model , --gpu h100", "--model ',': expected names with one comma between them"),
    ("compare --model gpt2 --gpu all,h100", "unknown GPU 'all': expected a name of `tilecast gpus` or a YAML file"),
    (
        "predict --model gpt2 --gpu /dev/zero",
        "cannot read GPU file '/dev/zero': is a device, not a plain file; expected a YAML file",
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
        "no estimators at '/dev/zero' (--artifacts): expected a folder that `tilecast train --out` wrote",
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
    ("dataset import vidur folder --out x.csv", "folder holds no vidur data: expected"),
    ("dataset import vtrain folder --out x.csv", "folder holds no vtrain data: expected"),
    ("dataset import llmcompass folder --out x.csv", "folder holds no llmcompass data: expected"),
    (
        "dataset import aiconfigurator folder --out x.csv",
        "folder holds no aiconfigurator data: expected",
    ),
    (
        "dataset import microbench folder --out x.csv",
        "folder holds no microbench data: expected <gpu>/<operator>/<software",
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
    (["\x1b[31m"], "unknown verb '\\x1b[31m': expected one of predict, serve, compare, plan,"),
    (
        ["predict", "--model", "a\nb", "--gpu", "h100"],
        "unknown model 'a\\nb': expected a name of `tilecast models` or a path to a config.json",
    ),
    (
        ["predict", "--model", "gpt2", "--gpu", "h100", "--dtype", "\x1b[31m"],
        "unknown dtype '\\x1b[31m': expected one of fp32, tf32, fp16, bf16, fp8, fp8_static, fp8_dynamic, fp8_block,",
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
