"""Pictures of attention: in a terminal, as a file, as a page and in a notebook.

labels     tokens as labels, and joined as their text
colours    the one scale of colour
terminal/  coloured text                         needs rich, extra `cli`
figures/   figures for papers, pictures in files  needs matplotlib, extra `plot`
page/      payloads and the page that draws them; its script and style in assets/
live/      a page's exact tiles, and the server that sends them
notebook/  the page as a widget, extra `notebook`, and things as they draw themselves in a cell
"""
