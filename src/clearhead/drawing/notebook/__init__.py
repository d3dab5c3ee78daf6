"""HTML output of notebook cells, and the page as a widget.

What stands on a low floor is drawn on a high one: `_repr_html_` and `to_html` fetch the module of `drawing`
by its name (`_common/lazy.py`), which the house checks like an import. What a cell draws
(`drawing/notebook/inline/`) is HTML without style sheets, scripts and SVG, which viewers of saved notebooks
take away; maps are PNG with a table of colours, written in ten lines of zlib. Its cost is bounded: a repr
must not compute 10¹⁰ weights, so of a large matrix it takes rows, which are exact, and says how many.

The widget (`drawing/notebook/widget.py`) is the page's module as it is. Instead of a server the kernel is
asked, with the same routes, by messages; a page without a kernel waits for it once.

The page of a trace (`frontend/src/trace.tsx`) has every stage as float32, and the weights between x and
output (`tracing/traced_call.py`, which calls a map plain only if it computes what was traced, to the
last bit), and writes the arithmetic out in the browser; tests hold its text against the tensors. What a stage
is made of is read off its arithmetic: the lines of the graph are the origins of one of its numbers.
"""
