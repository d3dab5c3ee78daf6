// The bundle of a page of heads.
import "./style.css";
import "./views/heads/heads.css";
import { draw, widget } from "./page";
import { kernelSource } from "./sources/kernel";
import { Heads } from "./views/heads";
import { headsTile } from "./views/heads/tiles";

draw(Heads, headsTile);

export { kernelSource };
export default widget(Heads, kernelSource);
