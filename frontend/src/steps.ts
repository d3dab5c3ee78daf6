// The bundle of a page of a trace.
import "./style.css";
import "./views/steps/steps.css";
import { draw, widget } from "./page";
import { Steps } from "./views/steps";

draw(Steps);

export default widget(Steps);
