// The numbers of a head under its map.

import { Hint } from "../../shared/hint";
import { quantity } from "../../shared/scale";
import type { LayerData, Row } from "./data";
import { ROLES } from "./guide";

/** The numbers of a head, with what chance gives. */
export function Facts({ row, roles, layer }: { row: Row; roles: string[]; layer: LayerData }) {
  return (
    <dl class="ch-facts ch-head-facts">
      {row.entropy !== null && (
        <div>
          <dt>entropy</dt>
          <dd>{quantity(row.entropy, "nats")}</dd>
        </div>
      )}
      {row.distance !== null && (
        <div>
          <dt>mean distance</dt>
          <dd>{quantity(row.distance, "tokens")}</dd>
        </div>
      )}
      {roles
        .filter((role) => beyond(role, row, layer))
        .map((role) => (
          <div key={role}>
            <dt>
              <Hint text={roleCard(role, layer)}>{role}</Hint>
            </dt>
            <dd>
              {Math.round(row.scores[role]! * 100)} %
              {typeof layer.chance?.[role] === "number" && (
                <span class="ch-chance"> by chance {Math.round(layer.chance[role] * 100)} %</span>
              )}
            </dd>
          </div>
        ))}
    </dl>
  );
}

/** False for a score that a head which looks at all alike has in this text, or more. */
function beyond(role: string, row: Row, layer: LayerData): boolean {
  return Math.round(row.scores[role]! * 100) > Math.round((layer.chance?.[role] ?? 0) * 100);
}

export function roleCard(role: string, layer: LayerData): string {
  const chance = layer.chance?.[role];
  const even = typeof chance === "number" ? Math.round(chance * 100) : null;
  return `${role}: ${ROLES[role] ?? role}.${even === null ? "" : `\nA head that looks at all alike has ${even} % in this text.`}`;
}
