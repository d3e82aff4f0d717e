// The values of samples as people look at them: texts, lists of numbers as pictures and lines. Pure.

import { isNumber } from './format';
import type { JsonNumber, SampleValue, VersionSummary } from './api/types';
import { visible } from './text';

/** A part of a text; an escape stands in the place of characters that a reader cannot see. */
export interface Piece {
  text: string;
  isEscape: boolean;
}

/** A text with its ends of lines; all other characters without a shape are escapes. */
export function pieces(text: string): Piece[] {
  return text
    .split(/((?:(?!\n)[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}])+)/u)
    .map((part, at) => ({ text: at % 2 === 1 ? visible(part) : part, isEscape: at % 2 === 1 }))
    .filter((piece) => piece.text !== '');
}

export function numbersOf(values: JsonNumber[]): number[] {
  return values.map((value) => (value === null ? Number.NaN : Number(value)));
}

export interface Spread {
  min: number;
  max: number;
  mean: number;
}

/** Of the values that are finite. */
export function spreadOf(values: number[]): Spread | undefined {
  const finite = values.filter((value) => Number.isFinite(value));
  if (finite.length === 0) return undefined;
  let [min, max, sum] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0];
  for (const value of finite) {
    min = Math.min(min, value);
    max = Math.max(max, value);
    sum += value / finite.length;
  }
  return { min, max, mean: sum };
}

export interface Shape {
  title: string;
  side: number;
  /** Where the value of a pixel is, for each picture beside the others, or for each colour of one. */
  planes: ((pixel: number) => number)[];
  isColour: boolean;
}

/** A list of fewer numbers is shown as numbers. */
export const FEW = 16;

/** The least side of planes: an embedding of 768 numbers is none. */
const PLANE = 28;

/** The pictures that a list of this length may be, the likeliest first; none is a line. */
export function shapesOf(length: number, type: string): Shape[] {
  if (length <= FEW) return [];
  const side = Math.round(Math.sqrt(length));
  if (side * side === length) return [{ title: `${side} × ${side}`, side, planes: [(pixel) => pixel], isColour: false }];
  const third = Math.round(Math.sqrt(length / 3));
  if (third < 4 || 3 * third * third !== length) return [];
  const inPixels = [0, 1, 2].map((colour) => (pixel: number) => 3 * pixel + colour);
  const inPlanes = [0, 1, 2].map((colour) => (pixel: number) => colour * third * third + pixel);
  const planes: Shape = { title: `3 planes of ${third} × ${third}`, side: third, planes: inPlanes, isColour: false };
  if (!isByte(type)) return third < PLANE ? [] : [planes];
  return [
    { title: `${third} × ${third} × 3, colours`, side: third, planes: inPixels, isColour: true },
    { title: `3 × ${third} × ${third}, colours`, side: third, planes: inPlanes, isColour: true },
    planes,
  ];
}

export const isByte = (type: string): boolean => /^u(?:int)?8$/i.test(type);

/** The pixels of a list: dark is its least value and light its greatest; of bytes 0 and 255. A missing value is clear. */
export function pixelsOf(values: number[], shape: Shape, type: string): { width: number; height: number; rgba: Uint8ClampedArray<ArrayBuffer> } {
  const { side, planes, isColour } = shape;
  const { min, max } = isByte(type) ? { min: 0, max: 255 } : (spreadOf(values) ?? { min: 0, max: 1 });
  const width = isColour ? side : planes.length * (side + 1) - 1;
  const rgba = new Uint8ClampedArray(4 * width * side);
  const level = (at: number): number => (max > min ? (255 * ((values[at] ?? Number.NaN) - min)) / (max - min) : 127);
  for (let pixel = 0; pixel < side * side; pixel += 1) {
    const [row, column] = [Math.floor(pixel / side), pixel % side];
    planes.forEach((at, number) => {
      const value = level(at(pixel));
      const to = 4 * (row * width + column + (isColour ? 0 : number * (side + 1)));
      if (Number.isNaN(value)) return;
      rgba.fill(value, isColour ? to + number : to, isColour ? to + number + 1 : to + 3);
      rgba[to + 3] = 255;
    });
  }
  return { width, height: side, rgba };
}

/** The line of a list in a box of 100 by 100: of a long list the least and the greatest of each piece. */
export function lineOf(values: number[], most = 240): string {
  const spread = spreadOf(values);
  if (!spread) return '';
  const size = Math.max(1, Math.ceil((2 * values.length) / most));
  const points: [number, number][] = [];
  for (let first = 0; first < values.length; first += size) {
    const of = spreadOf(values.slice(first, first + size));
    if (!of) continue;
    const x = (100 * (first + (Math.min(size, values.length - first) - 1) / 2)) / Math.max(1, values.length - 1);
    points.push([x, of.min]);
    if (of.max > of.min) points.push([x, of.max]);
  }
  const height = spread.max - spread.min || 1;
  return points.map(([x, y], at) => `${at === 0 ? 'M' : 'L'}${x.toFixed(1)} ${(100 - (100 * (y - spread.min)) / height).toFixed(1)}`).join('');
}

/** A number of a sample: at most five digits, unless it is whole. `0.031873`, `12,480`, `1.2e-7`. */
export function figure(value: unknown): string {
  if (!isNumber(value)) return visible(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 2 ** 53) return value.toLocaleString('en');
  return size >= 1e6 || size < 1e-4 ? value.toExponential(2) : value.toLocaleString('en', { maximumSignificantDigits: 5 });
}

/** `00ff 0a…` in pairs of bytes. */
export const hexOf = (hex: string): string => visible(hex).replace(/(.{4})(?=.)/g, '$1 ');

/** The most samples of one request, and the bytes that they may have: a node reads at most 64 MiB for it. */
const CARDS = 12;
const CARD_BYTES = 48 * 2 ** 20;

/** How many samples fit a request, by the longest rows of a version. */
export function cardsOf({ samples, row_bytes, row_lengths }: Pick<VersionSummary, 'samples' | 'row_bytes' | 'row_lengths'>): number {
  const longest = row_lengths?.p99 ?? (4 * row_bytes) / Math.max(1, samples);
  return Math.max(1, Math.min(CARDS, Math.floor(CARD_BYTES / Math.max(1, longest)) || 1));
}

/** The column that a card shows largest: a picture, else a list, a text, a nested value. */
export function leadOf(values: SampleValue[]): number {
  const weight = (value: SampleValue): number => {
    if (value === null) return 0;
    if (value.kind === 'list') return value.length > FEW ? 3 : 0;
    return { media: 4, text: 2, nested: 1, number: 0, bool: 0, bytes: 0, time: 0 }[value.kind] ?? 0;
  };
  const weights = values.map(weight);
  const most = Math.max(0, ...weights);
  return most === 0 ? -1 : weights.indexOf(most);
}

/** The value in one line; its number as `number` writes it. */
export function brief(value: SampleValue, number = figure): string {
  if (value === null) return 'null';
  switch (value.kind) {
    case 'number':
      return value.class === undefined ? number(value.value) : `${visible(value.class)} (${number(value.value)})`;
    case 'bool':
      return String(value.value);
    case 'text':
    case 'time':
      return visible(value.text);
    case 'bytes':
      return `${hexOf(value.hex)}${value.hex.length < 2 * value.length ? ' …' : ''}`;
    case 'list':
      return `[${value.values.slice(0, FEW).map((one) => (one === null ? 'null' : figure(one))).join(', ')}${value.length > FEW ? ', …' : ''}]`;
    case 'nested':
      return visible(JSON.stringify(value.json));
    default:
      return visible(value.kind);
  }
}

/** The name of a file for a value: no character has a meaning to a file system. */
export function fileName(dataset: string, sample: number, column: string, type: string): string {
  const end = type.startsWith('text/') ? 'txt' : (/^[a-z]+\/([a-z0-9]{1,8})$/.exec(type)?.[1] ?? 'bin');
  return `${plainName([dataset, String(sample), column].join('-'))}.${end}`;
}

/** A text as a name for a file system. */
export const plainName = (text: string): string => text.replace(/[^A-Za-z0-9._-]+/g, '_').replace(/^\.+/, '').slice(0, 100);
