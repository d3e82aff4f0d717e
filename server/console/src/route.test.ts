import assert from 'node:assert/strict';
import test from 'node:test';
import { nextPage } from './api/links';
import { datasetHref, listHref, nodeHref, parse, part, runHref, sampleHref, shardHref, whole } from './route';

const page = (hash: string): string => parse(hash).page;

test('each fragment leads to one page', () => {
  assert.deepEqual(['', '#', '#/', '#/nodes', '#/shards?by=bytes', '#/runs/', '#/nodes/n2', '#/runs/a', '#/x', '#/nodes/a/b', '#/shards/x', '#/nodes/%e0%a4%a'].map(page), [
    'overview', 'overview', 'overview', 'nodes', 'shards', 'runs', 'node', 'run', 'unknown', 'unknown', 'shard', 'unknown',
  ]);
  assert.deepEqual(['#/datasets', '#/datasets/a?version=3', '#/datasets/a/samples/12', '#/datasets/a/samples', '#/datasets/a/samples/-1', '#/datasets/a/samples/1/2', '#/datasets/a/samples/99999999999999999'].map(page), [
    'datasets', 'dataset', 'sample', 'unknown', 'unknown', 'unknown', 'unknown',
  ]);
});

test('a name comes back from its address, whatever its characters', () => {
  for (const name of ['n2', '"><svg onload=1> ../../v1/%2e?#', '__proto__', 'a/b', '漢字', ' ', '..']) {
    for (const href of [nodeHref(name), runHref(name), shardHref(name), datasetHref(name, { version: 'ab' }), sampleHref(name, 7, 'ab')]) {
      const route = parse(href);
      assert.ok('name' in route && route.name === name, href);
    }
  }
  assert.equal(part('\ud800'), '%EF%BF%BD');
});

test('a list has its settings in its address', () => {
  const href = listHref('nodes', { order: 'disk', search: 'a&b=c', kind: '' });
  const { query } = parse(href);
  assert.deepEqual([...query], [['order', 'disk'], ['search', 'a&b=c']]);
  assert.equal(listHref('runs', {}), '#/runs');
});

test('a number of an address is whole, or there is none', () => {
  assert.deepEqual(['12', '', '-1', '1e3', '0x10', '99999999999999999', null].map((text) => whole(text, 5)), [12, 5, 5, 5, 5, 5, 5]);
  assert.equal(whole('12', 0, 11), 0);
  assert.equal(sampleHref('a', 7, 'ab'), '#/datasets/a/samples/7?version=ab');
});

test('the next page of a list is relative, also behind a proxy', () => {
  assert.equal(nextPage('</v1/runs?limit=2&page=61>; rel="next"'), 'v1/runs?limit=2&page=61');
  assert.equal(nextPage('</v1/a>; rel="prev", </prefix/v1/runs?page=61>; rel=next'), 'v1/runs?page=61');
  assert.equal(nextPage(null), undefined);
  assert.equal(nextPage('<https://elsewhere.example/x>; rel="next"'), undefined);
});
