// A figure stands in a shadow of its own, so that several in one page share no id, no style and no state.

const sheets = new Map<string, CSSStyleSheet>();

/** Give an element a shadow with this style; returns where the figure is drawn. */
export function shadowOf(host: HTMLElement, style: string): HTMLElement {
  const root = host.attachShadow({ mode: "open" });
  let sheet = sheets.get(style);
  if (sheet === undefined) {
    sheet = new CSSStyleSheet();
    sheet.replaceSync(style);
    sheets.set(style, sheet);
  }
  root.adoptedStyleSheets = [sheet];
  const place = document.createElement("div");
  place.className = "live";
  root.append(place, document.createElement("slot"));
  return place;
}
