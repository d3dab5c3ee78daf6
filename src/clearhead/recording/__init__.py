"""What a call computes: query, key, value, the scores and their stages, and the token of each row.

A `DispatchMode` (`recorder.py`) sees every operation of a call, whatever the layers are called. Next to each
storage lies a shadow of tags: for each number, the element of the last product, or of the input, that it
stands for. Two products whose sides both depend on the input make an attention (`observed.py`); what was done
to the scores in between is read number by number (`weighing.py`). Tokens are changed one after the other, and
the operands of the same products taken again, so each row of query, key and value has its token
(`provenance.py`). `lines.py` notes the line of each operation. `check` and `trace` both read a recording; nothing here
judges it.
"""
