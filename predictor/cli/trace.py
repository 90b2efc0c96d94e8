"""`tilecast trace`: a profiler's trace of a job, and what it says of other boards."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from predictor.cli.tracked import resolve
from predictor.errors import RequestError, printable
from predictor.files.outputs import force_argument, output_argument
from predictor.profiles.record import RECORDED
from predictor.report.under_way import UnderWay

if TYPE_CHECKING:
    from predictor.hardware.gpu import GPUSpec
    from predictor.profiles.linked import Linked
    from predictor.profiles.steps import ProfiledStep

EXAMPLES = """examples:
  tilecast trace show trace.json.gz
  tilecast trace forecast trace.json.gz --gpu b200,mi300x
  tilecast trace compare trace.json.gz
  tilecast trace record train.py --out trace.json.gz
  tilecast trace show replay.json.gz --capture capture.json.gz

FILE is what export_chrome_trace of torch.profiler writes (docs/how-to/traces.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verbs of `trace`."""
    parser.epilog = EXAMPLES
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    show = verbs.add_parser("show", help="what ran, by class and module; what the GPU waited for", epilog=EXAMPLES,
                            formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    _add_trace(show)
    forecast = verbs.add_parser("forecast", help="the same steps on other boards", epilog=EXAMPLES,
                                formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    _add_trace(forecast)
    forecast.add_argument("--gpu", required=True, metavar="G,...", help="boards to forecast: names or YAML files")
    forecast.add_argument("--set", action="append", metavar="NAME=VALUE", dest="values",
                          help="a value of those boards in place of the file's, as predict has it")  # fmt: skip
    _add_board(forecast)
    compare = verbs.add_parser("compare", help="its operators against their forecasts", epilog=EXAMPLES,
                               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    _add_trace(compare)
    compare.add_argument("--top", type=int, default=20, metavar="N", help="operators that are shown (default: 20)")
    _add_board(compare)
    record = verbs.add_parser("record", help="run a script under the profiler (needs torch)", epilog=EXAMPLES,
                              formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    record.add_argument("script", metavar="SCRIPT.py", help="the script of a job")
    record.add_argument(
        "words", nargs="*", metavar="WORD", help="its arguments; write -- before them where the first one begins with -"
    )
    record.add_argument("--modules", action="store_true", help="record stacks, which tell modules; slows the host down")
    output_argument(record, "--out", RECORDED, required=True, metavar="FILE", help="the trace: .json or .json.gz")


def _add_board(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measured-on",
        metavar="GPU",
        help="the board of the trace, where its name is not in the catalogue",
    )
    parser.add_argument("--artifacts", metavar="DIR", help="a set of estimators (default: the one that ships)")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the trace, .json or .json.gz")
    parser.add_argument("--capture", metavar="FILE", help="the trace of the capture of the graphs that FILE replays")
    parser.add_argument("--json", action="store_true", help="print JSON")
    force_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what the action asks for."""
    actions = {"show": _show, "forecast": _forecast, "compare": _compare, "record": _record}
    return actions[arguments.action](arguments)


def read(arguments: argparse.Namespace) -> tuple[Linked, list[ProfiledStep]]:
    """The trace that the words name, with its steps. RequestError, one line, for what is none."""
    from predictor.profiles.linked import Linked
    from predictor.profiles.recorded import Recorded
    from predictor.profiles.steps import steps_of

    with UnderWay(f"reading {arguments.file}", arguments):
        capture = Recorded(arguments.capture) if arguments.capture else None
        linked = Linked(Recorded(arguments.file), capture)
        steps = steps_of(linked)
    if not steps:
        raise RequestError(f"{arguments.file}: no step has a kernel; expected a trace of at least one whole step")
    return linked, steps


def _show(arguments: argparse.Namespace) -> int:
    from predictor.profiles.summary import summary

    said = summary(*read(arguments))
    if arguments.json:
        print(json.dumps(said, indent=2, allow_nan=False))
        return 0
    _print_summary(arguments.file, said)
    return 0


def board_of(arguments: argparse.Namespace, linked: Linked) -> GPUSpec | None:
    """The board of a trace; None for a CPU that nobody names. RequestError, one line, where it is not known."""
    from predictor.hardware.gpu import load_gpu
    from predictor.profiles.summary import board_id

    if arguments.measured_on is not None:
        return load_gpu(arguments.measured_on)
    board = board_id(linked.trace.board)
    if board is None and not linked.of_cpu:
        said = printable(linked.trace.board) or "no board"
        raise RequestError(f"{arguments.file}: names {said}, which is not in the catalogue; expected --measured-on GPU")
    return None if board is None or linked.of_cpu else load_gpu(board)


def _forecast(arguments: argparse.Namespace) -> int:
    from predictor.hardware.gpu import load_gpu
    from predictor.hardware.what_if import with_values
    from predictor.kernels.artifact import load_artifacts
    from predictor.profiles.transfer import moved

    names = list(dict.fromkeys(name.strip() for name in arguments.gpu.split(",")))
    boards = [load_gpu(name) for name in names]
    boards = [with_values(board, arguments.values) if arguments.values else board for board in boards]
    selector = load_artifacts(resolve(arguments.artifacts))
    linked, steps = read(arguments)
    old = board_of(arguments, linked)
    answers = [moved(linked, steps, old, board, selector) for board in boards]
    if arguments.json:
        entries = [answer._asdict() for answer in answers]
        said = {"trace": arguments.file, "measured_on": old.id if old else None}
        print(json.dumps(said | entries[0] | ({"gpus": entries} if len(entries) > 1 else {}), indent=2))
        return 0
    from predictor.files.terminal import screen
    from predictor.report.table import say

    console = screen()
    say(console, f"{printable(arguments.file)}: measured {answers[0].measured_ms:.4g} ms a step"
                 + (f" on {old.id}" if old else ""))  # fmt: skip
    for answer in answers:
        low, high = answer.interval_ms
        say(
            console,
            f"{answer.gpu}: {answer.latency_ms:.4g} ms a step ({low:.4g} to {high:.4g}); kernels"
            f" {answer.kernel_ms:.4g} ms in place of {answer.measured_kernel_ms:.4g};"
            f" {answer.unmapped_share:.1%} not mapped",
        )
        for entry in answer.classes[:8]:
            say(console, f"  {entry['class']}: {entry['measured_ms']:.4g} -> {entry['ms']:.4g} ms")
        for note in answer.notes:
            say(console, f"  {note}")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from predictor.kernels.artifact import load_artifacts
    from predictor.profiles.compared import as_json, compared

    if arguments.top < 1:
        raise RequestError(f"--top {arguments.top}: expected 1 or more")
    selector = load_artifacts(resolve(arguments.artifacts))
    linked, steps = read(arguments)
    board = board_of(arguments, linked)
    if board is None:
        raise RequestError(f"{arguments.file}: is of a CPU that has no file; expected --measured-on GPU")
    differences = compared(linked, steps, board, selector)
    if arguments.json:
        print(json.dumps({"gpu": board.id, "operators": as_json(differences)}, indent=2))
        return 0
    from predictor.files.terminal import screen
    from predictor.report.table import say

    console = screen()
    say(console, f"{printable(arguments.file)} on {board.id}: {len(differences):,} operators, the most costly first")
    for each in differences[: arguments.top]:
        say(
            console,
            f"  {each.cost_ms:+9.4g} ms a step  {printable(each.operator)[:50]} x {each.calls:.4g}: measured"
            f" {each.measured_us:.4g} us, forecast {each.forecast_us:.4g} us ({each.why});"
            f" {printable(each.shape)[:100]}",
        )
    return 0


def _record(arguments: argparse.Namespace) -> int:
    from predictor.profiles.record import record

    record(arguments.script, arguments.words, arguments.out, arguments.modules)
    print(f"trace in {arguments.out}; next: tilecast trace show {arguments.out}")
    return 0


def _print_summary(file: str, said: dict[str, Any]) -> None:
    from predictor.files.terminal import screen
    from predictor.report.table import say

    console = screen()
    board = said["gpu"] or (f"{printable(said['board'])} (not in the catalogue)" if said["board"] else "no GPU named")
    say(console, f"{printable(file)}: {board}, {len(said['steps'])} step(s) of {said['step_ms']:.4g} ms (median)")
    memory = "" if said["peak_memory_gib"] is None else f"; peak memory {said['peak_memory_gib']:.3g} GiB"
    launch = "no launch was recorded"
    if said["launch_overhead_us"] is not None:
        launch = f"a launch takes the host {said['launch_overhead_us']:.3g} us (median of {said['launches']:,})"
    say(console, f"  the GPU is busy {said['busy_share']:.1%}; {launch}{memory}")
    for step in said["steps"][:8]:
        bound = "the host" if step["bound"] == "host" else "the GPU"
        exposed = step["exposed_communication_ms"]
        say(
            console,
            f"  {printable(step['name'])[:40]}: {step['ms']:.4g} ms, {step['kernels']:,} kernels in"
            f" {step['busy_ms']:.4g} ms; idle {step['idle_ms']:.3g} ms, {step['waits_for_host_ms']:.3g} ms of it for"
            f" the next launch; bound by {bound}" + (f"; communication exposed {exposed:.3g} ms" if exposed else ""),
        )
    say(console, f"by class ({said['mapped_share']:.1%} of kernel time mapped to an operator):")
    for entry in said["classes"][:16]:
        say(
            console,
            f"  {entry['share']:6.1%}  {entry['ms']:9.4g} ms  {entry['kernels']:6,} x  {printable(entry['class'])}",
        )
    if said["modules"]:
        say(console, "by module:")
    for entry in said["modules"][:10]:
        say(console, f"  {entry['share']:6.1%}  {entry['ms']:9.4g} ms  {printable(entry['module'])[:60]}")
    for entry in said["unmapped"][:5]:
        say(console, f"  not mapped: {entry['share']:.2%} {printable(entry['operator'] or entry['kernel'])[:80]}")
    for note in said["notes"]:
        say(console, note)
