// Curves of trainings on one axis of steps. Pure.

import type { CoursePoint } from './api/types';

type Of = (point: CoursePoint) => number | null;
type Placed = (of: Of) => (number | null | undefined)[];

/**
 * Two courses on the steps of both. A value is at the first step of its point: `null` if it is not a number, and `undefined` at the
 * steps of the other course.
 */
export function overlay(own: CoursePoint[], others: CoursePoint[]): { steps: number[]; own: Placed; theirs: Placed } {
  const steps = [...new Set([...own, ...others].map((point) => point.step))].sort((one, other) => one - other);
  const placed = (points: CoursePoint[]): Placed => {
    const at = new Map(points.map((point) => [point.step, point]));
    return (of) => steps.map((step) => {
      const point = at.get(step);
      return point === undefined ? undefined : of(point);
    });
  };
  return { steps, own: placed(own), theirs: placed(others) };
}

/** The point that has a step, or the last before it. */
export function pointAt(points: CoursePoint[], step: number): CoursePoint | undefined {
  return points.findLast((point) => point.step <= step) ?? points[0];
}
