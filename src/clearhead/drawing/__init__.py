"""Pictures of attention: in a terminal, and as a file.

summary    the numbers of a head, and its strongest links
labels     a token as a label that fits
colours    a share of one as a colour
terminal   coloured text                    needs rich, extra `cli`
static     a picture in a file              needs matplotlib, extra `plot`
figures    figures for papers               needs matplotlib, extra `plot`
"""
