"""A page's exact tiles, and the server that sends them.

`drawing/live/server.py` is the standard library's HTTP server, since four routes of GET need no framework;
what it refuses is the longer part of it. `matrix/tiles.py` makes a tile in two ways. With the logsumexp
of its queries a rectangle costs its own dot products: the rows are summed into cells while a chunk of weights
is in the cache, then the columns, in float64. Indexing the matrix and pooling that takes three times as long,
as every step of the definition is a pass over memory. 40 million pairs are what fits into a third of the time
that a person notices; a larger tile is read from a level, the whole map of a head in whole cells of so many
tokens that a tile of 40 million pairs in 256 × 256 cells is about as fine. So one level is enough, and no
pyramid is kept. A connection that has not shown the token has one deadline for its whole head, and makes room
for the next: turning the next one away instead would let 32 silent connections shut everybody out.
`drawing/live/tile_store.py` keeps both within bounds of bytes, makes each once however many ask, and lets a
tile that somebody waits for go before the pass that makes a level.
"""
