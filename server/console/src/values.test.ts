import assert from 'node:assert/strict';
import test from 'node:test';
import { brief, cardsOf, figure, fileName, hexOf, leadOf, lineOf, numbersOf, pieces, pixelsOf, shapesOf, spreadOf } from './values';

test('a text keeps its lines, and shows what has no shape', () => {
  assert.deepEqual(pieces('a\nb\r\n\tc\u202e'), [
    { text: 'a\nb', isEscape: false }, { text: '\\r', isEscape: true }, { text: '\n', isEscape: false }, { text: '\\t', isEscape: true }, { text: 'c', isEscape: false }, { text: '\\u{202e}', isEscape: true },
  ]);
  assert.deepEqual(pieces(''), []);
  assert.equal(pieces('x'.repeat(100_000)).length, 1);
});

test('a spread is of the finite values, also of those that JSON has as text', () => {
  const values = numbersOf([1, null, '3', 'NaN', 'Infinity', -4]);
  assert.deepEqual(spreadOf(values), { min: -4, max: 3, mean: 0 });
  assert.equal(spreadOf(numbersOf([null, 'NaN'])), undefined);
  assert.equal(spreadOf([]), undefined);
});

test('a list is a picture where its length says so, in colours where it has bytes', () => {
  const titles = (length: number, type: string): string[] => shapesOf(length, type).map((shape) => shape.title);
  assert.deepEqual(titles(784, 'Float32'), ['28 × 28']);
  assert.deepEqual(titles(3072, 'UInt8'), ['32 × 32 × 3, colours', '3 × 32 × 32, colours', '3 planes of 32 × 32']);
  assert.deepEqual(titles(3072, 'Float32'), ['3 planes of 32 × 32']);
  assert.deepEqual(titles(768, 'Float32'), []);
  assert.deepEqual([16, 17, 768, 27, 0].flatMap((length) => titles(length, 'UInt8')), ['16 × 16 × 3, colours', '3 × 16 × 16, colours', '3 planes of 16 × 16']);
});

test('pixels are dark for the least value and light for the greatest, and clear where there is none', () => {
  const [square] = shapesOf(25, 'Float32');
  assert.ok(square);
  const values = Array.from({ length: 25 }, (_, at) => (at === 3 ? Number.NaN : at - 12));
  const { width, height, rgba } = pixelsOf(values, square, 'Float32');
  assert.deepEqual([width, height, rgba[0], rgba[3], rgba[15], rgba[96], rgba[99]], [5, 5, 0, 255, 0, 255, 255]);
  // A list that the node cut has no values for the rest.
  assert.equal(pixelsOf([1, 2], square, 'UInt8').rgba[99], 0);
  const [inPixels, inPlanes, planes] = shapesOf(48, 'UInt8');
  assert.ok(inPixels && inPlanes && planes);
  const colours = Array.from({ length: 48 }, (_, at) => at);
  assert.deepEqual([...pixelsOf(colours, inPixels, 'UInt8').rgba.slice(4, 8)], [3, 4, 5, 255]);
  assert.deepEqual([...pixelsOf(colours, inPlanes, 'UInt8').rgba.slice(4, 8)], [1, 17, 33, 255]);
  const beside = pixelsOf(colours, planes, 'UInt8');
  assert.deepEqual([beside.width, beside.rgba[4 * 5], beside.rgba[4 * 4 + 3]], [14, 16, 0]);
  assert.equal(pixelsOf(Array(25).fill(7), square, 'Float32').rgba[0], 127);
});

test('a line has the extremes of a long list, and few points', () => {
  assert.equal(lineOf([0, 1, 2]), 'M0.0 100.0L50.0 50.0L100.0 0.0');
  const long = lineOf(Array.from({ length: 4000 }, (_, at) => (at === 1234 ? 9 : at % 2)));
  assert.ok(long.split('L').length <= 240 && / 0\.0(?:L|$)/.test(long));
  assert.equal(lineOf([Number.NaN]), '');
});

test('a value has a line, and a number at most five digits', () => {
  assert.deepEqual([12_480, 20_248.46, 0.0318731, 1.23e-7, -2.5, 'NaN', '18446744073709551615'].map(figure), ['12,480', '20,248', '0.031873', '1.23e-7', '-2.5', 'NaN', '18446744073709551615']);
  assert.equal(brief(null), 'null');
  assert.equal(brief({ kind: 'number', value: 3, class: 'a\u0000' }), 'a\\u{0} (3)');
  assert.equal(brief({ kind: 'number', value: 0.1234567 }, String), '0.1234567');
  assert.equal(brief({ kind: 'list', type: 'Int8', length: 3, values: [1, null, 'NaN'] }), '[1, null, NaN]');
  assert.equal(brief({ kind: 'nested', json: { a: [1] }, is_cut: false }), '{"a":[1]}');
  assert.equal(hexOf('00ff0a'), '00ff 0a');
  assert.equal(brief({ kind: 'bytes', hex: '00ff', length: 9 }), '00ff …');
});

test('a card leads with a picture, else a list, a text, a nested value', () => {
  const number = { kind: 'number', value: 1 } as const;
  const text = { kind: 'text', text: 'a', length: 1 } as const;
  assert.equal(leadOf([number, text, { kind: 'media', media_type: 'image/png', length: 3 }]), 2);
  assert.equal(leadOf([text, { kind: 'list', type: 'UInt8', length: 784, values: [] }]), 1);
  assert.equal(leadOf([null, number, { kind: 'list', type: 'UInt8', length: 3, values: [] }]), -1);
});

test('a request has as many samples as a node reads at once', () => {
  const MIB = 2 ** 20;
  assert.equal(cardsOf({ samples: 100, row_bytes: 100_000 }), 12);
  assert.equal(cardsOf({ samples: 0, row_bytes: 0 }), 12);
  assert.equal(cardsOf({ samples: 10, row_bytes: 10 * 4 * MIB }), 3);
  assert.equal(cardsOf({ samples: 10, row_bytes: 1, row_lengths: { min: 1, p25: 1, p50: 1, p75: 1, p99: 900 * MIB, max: 900 * MIB } }), 1);
  assert.equal(cardsOf({ samples: 1, row_bytes: Number.NaN }), 1);
});

test('the name of a file has no character with a meaning', () => {
  assert.equal(fileName('a', 3, 'image', 'image/jpeg'), 'a-3-image.jpeg');
  assert.equal(fileName('../../etc', 3, 'x/<script>\u202e', 'text/html; x'), '_.._etc-3-x_script_.txt');
  assert.equal(fileName('a', 1, 'b', 'application/octet-stream'), 'a-1-b.bin');
});
