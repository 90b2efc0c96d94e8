"""Archives of torch.export (.pt2), with a place of the graph changed, members left out, or bytes damaged."""

from __future__ import annotations

import io
import json
import zipfile

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.changes import ODD, changed_tree, damaged_bytes
from tests.fuzzing.targets import ask_words

NEEDS = ("torch",)
LOADS = ("torch.fx.experimental.proxy_tensor",)
MORE = ("", "", "--input float[4,8]", "--input float[99999999,8]", "--mode train", "--execution compile", "--tp 2")
#: What stands in a graph of torch.export in places of its own.
TAGGED = st.sampled_from((
    {"as_int": -5}, {"as_int": 10**20}, {"as_name": "x"}, {"as_tensor": {"name": "x"}}, {"as_tensors": []},
    {"as_none": True}, {"as_float": "nan"}, {"as_sym_int": {"as_name": "s0"}}, "torch.ops.aten.unbind.int",
    "torch.ops.aten.mm.default", "torch.os.getcwd", "os.system",
))  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    data = seed("net.pt2")
    if draw(st.integers(0, 4)):
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
            dropped = draw(st.sampled_from(("", "", "", *source.namelist())))
            for name in source.namelist():
                content = source.read(name)
                if name.endswith("models/model.json"):
                    content = json.dumps(draw(changed_tree(json.loads(content), most=2, values=ODD | TAGGED))).encode()
                if name != dropped:
                    target.writestr(name, content)
        data = out.getvalue()
    else:
        data = draw(damaged_bytes(data))
    words = f"predict --model net.pt2 --gpu h100 --artifacts roofline --json {draw(st.sampled_from(MORE))}"
    return Case("archives", {"net.pt2": data}, words.split())


ask = ask_words
