// The one module: a page runs it as it is, a server's page and a widget import `mount`.
import "./style.css";
import "./views/heads/heads.css";
import { mount } from "./mount";
import { pageSource } from "./source";
import { ServerSource } from "./sources/server";
import { headsTile } from "./views/heads/tiles";

export { mount } from "./mount";
export { BytesSource } from "./source";
export { default, widgetSource } from "./widget";
export { headsTile };

const payload = document.getElementById("clearhead-payload");
const place = document.getElementById("clearhead-page");
if (payload !== null && place !== null) {
  const served = payload.dataset.source === "server";
  const source = served
    ? new ServerSource(headsTile, "server")
    : pageSource((payload.textContent ?? "").trim(), headsTile);
  void mount(place, source);
}
