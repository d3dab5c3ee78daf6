// The views, by the `kind` that a payload's head names: one folder each.
import type { ComponentType } from "preact";
import type { Head } from "../payload";
import type { Source } from "../source";
import { Heads } from "./heads";
import { Steps } from "./steps";

export interface ViewProps {
  head: Head;
  source: Source;
}

export const views: Record<string, ComponentType<ViewProps>> = {
  heads: Heads,
  trace: Steps,
};
