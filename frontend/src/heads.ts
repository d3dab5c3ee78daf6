// The bundle of a page of heads.
import "./style.css";
import "./views/heads/heads.css";
import { draw, widget } from "./page";
import { BytesSource } from "./source";
import { kernelSource } from "./sources/kernel";
import { ServerSource } from "./sources/server";
import { Heads } from "./views/heads";
import { headsTile } from "./views/heads/tiles";

draw(Heads, (read, place) =>
  place.dataset.source === "server" ? new ServerSource("server") : new BytesSource(read, headsTile),
);

export { kernelSource };
export default widget(Heads, kernelSource);
