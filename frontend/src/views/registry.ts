// The views, by the `kind` that a payload's head names: one folder each.
import type { ComponentType } from "preact";
import type { ViewProps } from "../source";
import { Heads } from "./heads";
import { Steps } from "./steps";

export const views: Record<string, ComponentType<ViewProps>> = {
  heads: Heads,
  trace: Steps,
};
