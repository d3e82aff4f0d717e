import assert from 'node:assert/strict';
import test from 'node:test';
import { cut, sentence, shell, visible, withCode } from './text';

test('each character without a shape has an escape', () => {
  assert.equal(visible('a\u0000\n\t\r\u001b\u007f\u0085\u200b\u202e\u2066\ufeff\u2028b'), 'a\\u{0}\\n\\t\\r\\u{1b}\\u{7f}\\u{85}\\u{200b}\\u{202e}\\u{2066}\\u{feff}\\u{2028}b');
  assert.equal(visible('x\ud800y'), 'x\\u{d800}y');
  assert.equal(visible('Grüße 漢字 😀'), 'Grüße 漢字 😀');
  assert.equal(visible(undefined), '');
  assert.equal(visible({ toString: () => 'odd' }), 'odd');
});

test('a long text ends with an ellipsis, between characters', () => {
  assert.equal(cut('abcdef', 6), 'abcdef');
  assert.equal(cut('abcdefg', 6), 'abcde…');
  assert.equal(cut('😀'.repeat(6), 6), '😀'.repeat(6));
  assert.equal(cut('😀'.repeat(7), 6), `${'😀'.repeat(5)}…`);
  assert.equal(cut('x'.repeat(1_000_000), 6), 'xxxxx…');
});

test('parts between backticks are code, a single backtick is not', () => {
  assert.deepEqual(withCode('run `a b` or `c`.'), ['run ', 'a b', ' or ', 'c', '.']);
  assert.deepEqual(withCode('a ` b'), ['a ` b']);
  assert.deepEqual(withCode('`a` ` b'), ['', 'a', ' ` b']);
  assert.deepEqual(withCode(''), ['']);
});

test('a sentence begins with a capital', () => {
  assert.equal(sentence('the disk'), 'The disk');
  assert.equal(sentence(''), '');
});

test('a shell reads a word as one word', () => {
  assert.equal(shell('s3://bucket/a-b'), 's3://bucket/a-b');
  assert.equal(shell('/data/my store'), "'/data/my store'");
  assert.equal(shell("x'; rm -rf $HOME"), "'x'\\''; rm -rf $HOME'");
  assert.equal(shell('a\nb'), "'a\\nb'");
  assert.equal(shell('~root/store'), "'~root/store'");
  assert.equal(shell(''), "''");
});
