"""Malformed lines and texts of GPU, system and model files -> what the one line says. `test_malformed` runs them."""

from __future__ import annotations

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
        "GPU file 'g.yaml' line 110: broken YAML: 'value' appears twice; expected once",
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
    ("notes: &n [*n]", "GPU file 'g.yaml' line 113: broken YAML: 'n' holds itself"),
    ("notes: *nobody", "GPU file 'g.yaml' line 113: broken YAML: found undefined alias"),
    ("<<: 5", "GPU file 'g.yaml' line 113: broken YAML: expected a mapping or list of mappings for"),
    ("? [a, b]\n: 1", "GPU file 'g.yaml' line 113: broken YAML: found unhashable key"),
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
        "system file 's.yaml' line 26: broken YAML: 'gpus_per_node' appears twice; expected once",
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
    ("{}", "m.json: missing 'model_type', expected one of bert, bloom, cohere, deepseek_v2,"),
    ('{"model_type": null}', "m.json: missing 'model_type', expected one of bert, bloom, cohere, deepseek_v2,"),
    ('{"model_type": ""}', "m.json: unknown model_type '': expected one of bert, bloom, cohere, deepseek_v2,"),
    (
        '{"model_type": "\\u001b[31m"}',
        "m.json: unknown model_type '\\x1b[31m': expected one of bert, bloom, cohere,",
    ),
    ('{"a": 1, "a": 2}', "m.json: key 'a' appears twice; expected once"),
    ('{"a": {"b": 1, "b": 2}}', "m.json: key 'b' appears twice; expected once"),
]
