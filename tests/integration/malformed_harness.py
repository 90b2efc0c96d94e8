"""Malformed words, sweeps, cases and suites of microbench -> what the one line says. `test_malformed` runs them."""

from __future__ import annotations

MICROBENCH: list[tuple[str, str]] = [
    ("plan --ops nope", "unknown operator 'nope': expected one of aggregate, attention, channel_norm,"),
    ("plan --dtypes bf61", "unknown dtype 'bf61': expected one of fp64, fp32, tf32, fp16, bf16, fp8, int8, int4,"),
    ("plan --budget x", "'x' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h"),
    ("plan --budget 0s", "'0s' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h"),
    ("plan --max-cases 0", "--max-cases 0: expected at least 1"),
    ("plan --max-cases x", "microbench plan: argument --max-cases: 'x' is not a whole number; expected digits such as"),
    ("plan --device tpu", "microbench plan: argument --device: invalid choice: 'tpu' (choose from 'cuda', 'cpu')"),
    ("plan --gpu zzz", "unknown GPU 'zzz': expected a name of `tilecast gpus` or a YAML file"),
    ("plan --gpu /dev/zero", "cannot read GPU file '/dev/zero': is a device, not a plain file; expected a YAML file"),
    ("plan --threads -1", "--threads -1: expected 0 to 4096"),
    ("plan --case-seconds x", "'x' is no time: expected a number above zero with a unit, such as 60s, 10min, 2h"),
    ("plan --rows 5", "5 rows to calibrate with: expected 16 to 256"),
    ("plan --calibration --rows 9999", "9999 rows to calibrate with: expected 16 to 256"),
    ("plan --sweeps folder", "folder holds no sweep: expected files such as gemm.yaml"),
    ("plan --sweeps /dev/zero", "--sweeps /dev/zero: expected a folder of sweep files"),
    ("plan --out folder", "--out 'folder': exists and is not a plain file; expected a file to write"),
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
        "the sweep sw/gemm.yaml, group 'a': dtypes is 5: expected such as [bf16]",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf61], fields: {m: 1, n: 1, k: 1}}]",
        "unknown dtype 'bf61': expected one of fp64, fp32, tf32, fp16, bf16, fp8, int8, int4,",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: 5}]",
        "the sweep sw/gemm.yaml, group 'a': fields is 5: expected such as {k: 64}",
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
        "the sweep sw/gemm.yaml, group 'a': axis m is {'log': [1]}: expected log: [lowest,",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {log: [1, x]}}}]",
        "the sweep sw/gemm.yaml, group 'a': axis m is {'log': [1, 'x']}: expected log: [lowest,",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {choice: []}}}]",
        "the sweep sw/gemm.yaml, group 'a': axis m is {'choice': []}: expected choice: a list of",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {same: zzz}}}]",
        "the sweep sw/gemm.yaml, group 'a': axis m is {'same': 'zzz'}: 'zzz' is no field of the",
    ),
    (
        "launcher: gemm\ngroups: [{name: a, dtypes: [bf16], fields: {n: 1, k: 1}, axes: {m: {divide: zzz, by: [2]}}}]",
        "the sweep sw/gemm.yaml, group 'a': axis m is {'divide': 'zzz', 'by': [2]}: 'zzz' is no",
    ),
    (
        "launcher: gemm\nlauncher: gemm\ngroups: []",
        "the sweep sw/gemm.yaml line 2: broken YAML: 'launcher' appears twice; expected once",
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
    ('{"format":"microbench-cases","format":"x"}', "--cases c.json: c.json: key 'format' appears twice; expected once"),
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
        "s.csv: column 'dtype' appears twice; expected once",
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
        "configs/two.json: key 'a' appears twice; expected once",
    ),
    (
        "config,mode,dtype,global_batch,seqlen\ngpt2,forward,bf16,1,5\n",
        "s.csv: unknown column 'seqlen'; nearest: seq_len",
    ),
]
