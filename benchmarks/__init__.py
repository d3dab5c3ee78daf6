"""The cost of clearhead, beside its peers: `python -m benchmarks`.

A case is one function in a file `cases_<group>.py`. It builds the inputs and returns the sides,
ours first::

    from benchmarks.harness import Sides, case

    @case("attend-causal-4096", reach="<= 1.02x", work="causal, (1, 12, 4096, 64)")
    def attend_causal() -> Sides:
        query, key, value = torch.randn(3, 1, 12, 4096, 64).unbind()
        return {
            "clearhead": lambda: ch.attend(query, key, value, mask=ch.causal()),
            "torch": lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        }

The results of the sides are compared first; where they differ, no figure is printed or stored.
"""
