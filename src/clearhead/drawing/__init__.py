"""Pictures of attention: in a terminal, and as a file.

summary    the numbers of a head, and its strongest links
labels     a token as a label that fits
colours    a share of one as a colour
terminal   coloured text                    needs rich, extra `cli`
static     a picture                        needs matplotlib, extra `plot`
heads      heads as a payload of a page     with `texts` and `rounding`
payload    what a page draws, as bytes
page       a payload as a file of HTML
assets/    the page's script and style, bundled from frontend/
"""
