// Curves of trainings on one axis of steps. Pure.

import type { CoursePoint } from './api/types';
import type { Points } from './series';

type Of = (point: CoursePoint) => number | null;

/** Two courses on the steps of both: a value is at the first step of its point, and there is none at the steps of the other. */
export function overlay(own: CoursePoint[], others: CoursePoint[]): { steps: number[]; own: (of: Of) => Points; theirs: (of: Of) => Points } {
  const steps = [...new Set([...own, ...others].map((point) => point.step))].sort((one, other) => one - other);
  const placed = (points: CoursePoint[]) => {
    const at = new Map(points.map((point) => [point.step, point]));
    return (of: Of): Points => steps.map((step) => {
      const point = at.get(step);
      return point === undefined ? null : of(point);
    });
  };
  return { steps, own: placed(own), theirs: placed(others) };
}

/** The point that has a step, or the last before it. */
export function pointAt(points: CoursePoint[], step: number): CoursePoint | undefined {
  return points.findLast((point) => point.step <= step) ?? points[0];
}
