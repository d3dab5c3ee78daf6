// <ch-figure data-figure="…">: attention whose numbers are touched, in any page. What it draws stands in a
// shadow of its own, so that several in one page share no id, no style and no state.
import { render } from "preact";
import { inFrame } from "../shared/host";
import style from "./figure.css";
import { type FigureData, read, START, type State, write } from "./model";
import { shadowOf } from "./shadow";
import { TouchedFigure } from "./touched";
import touchedStyle from "./touched.css";

class ChFigure extends HTMLElement {
  #place: HTMLElement | null = null;
  #data: FigureData | null = null;
  #text = "";
  #put: (state: State) => void = () => {};
  #leave = () => {};

  connectedCallback() {
    try {
      this.#data = JSON.parse(this.dataset.figure ?? "") as FigureData;
    } catch {
      return; // What stands inside stays: the picture.
    }
    const data = this.#data;
    const start = read(this.getAttribute("state") ?? "", data);
    this.#place ??= shadowOf(this, style + touchedStyle);
    this.#text = write(start);
    render(
      <TouchedFigure
        data={data}
        level={this.getAttribute("level") === "1" ? 1 : 2}
        start={start}
        ready={(put) => {
          this.#put = put;
        }}
        changed={(text) => {
          if (text === this.#text) return;
          this.#text = text;
          this.dispatchEvent(new CustomEvent("statechange", { detail: text, bubbles: true }));
        }}
      />,
      this.#place,
    );
    this.#leave = inFrame(
      this,
      () => document.documentElement.getBoundingClientRect().height,
      (theme) => {
        this.toggleAttribute("theme", theme !== null);
        if (theme) this.setAttribute("theme", theme);
        document.documentElement.style.colorScheme = theme ?? "";
      },
    );
  }

  disconnectedCallback() {
    this.#leave();
    if (this.#place !== null) render(null, this.#place);
  }

  /** All that a reader has changed, as one short text; "" is how it began. */
  get state(): string {
    return this.#text;
  }

  set state(text: string) {
    if (this.#data !== null) this.#put(text === "" ? START : read(text, this.#data));
  }
}

// A notebook may hold this script once for each figure.
if (customElements.get("ch-figure") === undefined) customElements.define("ch-figure", ChFigure);
