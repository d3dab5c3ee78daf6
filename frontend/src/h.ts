// What the build writes for an element.
export { Fragment, h } from "preact";
