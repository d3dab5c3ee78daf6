"""Pictures of attention: in a terminal, as a file, as a page and in a notebook.

summary    the numbers of a head, and its strongest links
labels     a token as a label that fits
colours    a share of one as a colour
terminal   coloured text                    needs rich, extra `cli`
static     a picture in a file              needs matplotlib, extra `plot`
figures    figures for papers               needs matplotlib, extra `plot`
payload    what a page draws, as bytes
page       a payload as a page of HTML
steps      a trace as a payload
inline     things as they draw themselves at the end of a notebook's cell
notebook   the page as a widget             needs anywidget, extra `notebook`
heads      heads as a payload of a page     with `texts` and `rounding`
assets/    the page's script and style, bundled from frontend/
"""
