"""Attention whose numbers are touched, as one element for any page.

data        what a figure holds, read from a trace, and what is refused
start       the state that it begins with
still       its beginning as a picture, SVG, for print and where nothing runs
figure      `figure`, and what it gives
mask_figure a mask alone
"""
