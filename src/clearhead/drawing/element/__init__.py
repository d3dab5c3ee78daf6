"""Interactive figures of attention, as one HTML element for any page.

data        what a figure holds, read from a trace, and what is refused
figure      `figure`, what it gives, the state that it begins with, and a mask alone
trace_page  the page of a trace

`<ch-figure>` is a script of its own, `figure.js`, since it stands in pages of others. What it draws is in a
shadow, its style an adopted sheet, so that several share nothing and a policy need allow no style; what
stands inside the element is the numbers for print and where nothing runs. Every stage is its formula, and
then what a hand has set: so a cut score, an edited weight and an input are one idea. `figure` reads
everything from a trace; numbers of float32 travel in nine digits. A figure of widths holds scores by width in
the place of query and key; draw n of dropout is seeded by n, so that a state holds a count and no numbers.
"""
