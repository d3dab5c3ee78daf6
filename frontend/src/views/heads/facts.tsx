// The numbers of a head under its map.

import { Hint } from "../../shared/hint";
import { quantity } from "../../shared/scale";
import type { Row } from "./data";
import { ROLES } from "./guide";

/** The numbers of a head. */
export function Facts({ row, roles }: { row: Row; roles: string[] }) {
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
        .filter((role) => Math.round(row.scores[role]! * 100) > 0)
        .map((role) => (
          <div key={role}>
            <dt>
              <Hint text={roleCard(role)}>{role}</Hint>
            </dt>
            <dd>{Math.round(row.scores[role]! * 100)} %</dd>
          </div>
        ))}
    </dl>
  );
}

export function roleCard(role: string): string {
  return `${role}: ${ROLES[role] ?? role}.`;
}
