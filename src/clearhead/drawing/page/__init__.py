"""The payload of a page, and the page that draws it; its script and style lie in assets/.

`frontend/` is TypeScript and Preact, bundled by esbuild into a script and a style for each kind of page,
`drawing/page/assets/heads.js`, `trace.js` and `sentence.js`, and `figure.js`, which are committed: an installed
clearhead needs no Node. What they share, `frontend/src/shared`, stands in each, since a page is one file. Biome
formats and lints it. `make page` bundles; a test bundles again and compares the bytes.

`drawing/page/payload.py` is the one format: a head of JSON, and named arrays, each deflated by itself. The
same bytes stand in a page, come from a server, and go to a widget. In a page they are base64: four bytes for
three. Codes that waste less (base85, bytes in a Latin-1 page) save 6 to 25 % and need either a decoder that
is slower than the browser's own or a server that never says UTF-8. Each part begins at a multiple of three,
so that one head is decoded when it is looked at, and not all of them.

In the front end everything goes through a `Source`: `head()`, `array(name)`, and `tile(…)`, the part of a map
that is in view, in as many cells as there are pixels. A tile may be coarser than what was asked for; it says
how large its cells are, how fine what they are made of is, and where the colours end. The map draws the last
tile, moved and stretched, until the next one is there. The `kind` of the payload names the script.

What a page shows is one text, which stands in the address: a table of fields in `state.ts` of each view says how
each is read and written and where it starts (`shared/fields.ts`). `start=` of `to_html`
takes it, so that a view has one option and not one each. `starts.STATE` refuses what no address says. What a reader
does is a function of the state (`views/heads/actions.ts`). Theme and scale are part of it, so that several views in
one document share neither (`shared/look.ts`). A
`HeadMap` is what is known of a head; one without what a reader leaves out (`filter.ts`), and one of several
heads (`several.ts`), are maps of the same kind, so that the map, the text and the lists need not know. A
difference has a sign, and is a kind of its own (`difference.ts`). Values are followed by `shared/signals.ts`,
a third of the library for it, since components and `subscribe` are all that follows here. Signals that are
derived from props are made by `useMemo`, which names what they depend on.

A page knows the mask of a long text as runs of keys (`runs_of_keys`), so that nothing is spread over pairs
that are hidden; a summary keeps no mask, and is treated as causal where no query gives weight to a later
key.

Weights of up to 1 MB are exact. More are rounded by their square root (`drawing/page/payload.py`), to 16 bits
while these take 1 MB at most, else to 8: most lie near 0, and these deflate to 2 to 4 bits. Differences between
neighbours, as in PNG, were tried and do not deflate better. How many steps is chosen so that the page keeps its
size, from the entropy of every seventh query. A long text has its pooled map, its links by rank as long as
there is room, and nothing tokens × tokens.

A picture whose patches are the keys (`drawing/page/photo.py`) gives a page its tokens, an entry and arrays; the
view over it (`photo_view.tsx`) replaces the text of the keys, and nothing else knows of it. In a component
`useLoaded` is the one way to wait for data: it says whether what came is of the present dependencies.

The policy of a page allows its script and its style by their hashes, and no connection. What comes from
outside is set as text, never as markup.

`drawing` stands above what is drawn. `to_html` fetches it by name (`_common/lazy.py`) when it is called.
"""
