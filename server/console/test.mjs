// Runs src/**/*.test.ts with node's test runner. Node 20 reads no TypeScript, so esbuild bundles each test first.

import { spawnSync } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const root = fileURLToPath(new URL('.', import.meta.url));
const tests = (await readdir(join(root, 'src'), { recursive: true })).filter((name) => name.endsWith('.test.ts')).sort();
const folder = await mkdtemp(join(tmpdir(), 'console-tests-'));
try {
  await build({
    absWorkingDir: root,
    entryPoints: tests.map((name) => join('src', name)),
    outdir: folder,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    format: 'esm',
    platform: 'node',
    jsx: 'automatic',
    jsxImportSource: 'preact',
  });
  const built = (await readdir(folder, { recursive: true })).filter((name) => name.endsWith('.mjs')).sort();
  const { status } = spawnSync(process.execPath, ['--test', ...built.map((name) => join(folder, name))], {
    stdio: 'inherit',
    env: { ...process.env, TZ: 'Europe/Berlin' },
  });
  process.exitCode = status ?? 1;
} finally {
  await rm(folder, { recursive: true, force: true });
}
