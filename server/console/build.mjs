// Builds dist/ from src/. With --check it writes nothing, and fails where dist/ differs from a fresh build.

import { readFile, writeFile, mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const root = fileURLToPath(new URL('.', import.meta.url));
const dist = join(root, 'dist');
/** The most bytes of what a page loads first, and of its charts: as they are, and compressed. */
const LIMITS = [
  { of: ['console.js', 'console.css'], plain: 184 * 1024, gzip: 60 * 1024 },
  { of: ['charts.js'], plain: 56 * 1024, gzip: 24 * 1024 },
];
/** Packages whose code is in the bundle. */
const BUNDLED = ['preact', 'uplot'];

const files = new Map();
files.set('index.html', await readFile(join(root, 'index.html')));
const common = {
  absWorkingDir: root,
  outdir: 'dist',
  bundle: true,
  target: ['es2022', 'chrome123', 'firefox120', 'safari17.5'],
  minify: true,
  charset: 'utf8',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none',
  banner: { js: '/*! Licences: LICENSES.txt */', css: '/*! Licences: LICENSES.txt */' },
  metafile: true,
  write: false,
};
const made = await Promise.all([
  build({ ...common, format: 'iife', entryPoints: { console: 'src/main.tsx' } }),
  build({ ...common, format: 'esm', entryPoints: { charts: 'src/charts.ts' } }),
]);
for (const { path, contents } of made.flatMap((one) => one.outputFiles)) files.set(path.slice(dist.length + 1), Buffer.from(contents));

const packages = new Set(
  made.flatMap((one) => Object.keys(one.metafile.inputs)).flatMap((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1] ?? []),
);
for (const name of packages) {
  if (!BUNDLED.includes(name)) throw new Error(`${name} is in the bundle and not in LICENSES.txt`);
}
const licences = await Promise.all(
  BUNDLED.map(async (name) => {
    const { version, license } = JSON.parse(await readFile(join(root, 'node_modules', name, 'package.json'), 'utf8'));
    const text = await readFile(join(root, 'node_modules', name, 'LICENSE'), 'utf8');
    return `${name} ${version} (${license})\n\n${text.replaceAll('\r\n', '\n').trim()}\n`;
  }),
);
files.set('LICENSES.txt', Buffer.from(`console.js, charts.js and console.css have code of these packages.\n\n${licences.join('\n\n')}`));

for (const { of, plain, gzip } of LIMITS) {
  const code = of.map((name) => files.get(name));
  const sizes = [code, code.map((bytes) => gzipSync(bytes, { level: 9 }))].map((all) => all.reduce((sum, bytes) => sum + bytes.length, 0));
  console.log(`${of.join(' and ')}: ${sizes[0]} bytes, ${sizes[1]} compressed; at most ${plain} and ${gzip}`);
  if (sizes[0] > plain || sizes[1] > gzip) {
    console.error('too large');
    process.exit(1);
  }
}

if (process.argv.includes('--check')) {
  const there = await readdir(dist).catch(() => []);
  const differ = [...new Set([...files.keys(), ...there])].sort();
  const wrong = [];
  for (const name of differ) {
    const old = await readFile(join(dist, name)).catch(() => undefined);
    if (!old || !files.get(name)?.equals(old)) wrong.push(name);
  }
  if (wrong.length > 0) {
    console.error(`dist differs from a fresh build in ${wrong.join(', ')}: run npm run build`);
    process.exit(1);
  }
  console.log('dist equals a fresh build');
} else {
  await mkdir(dist, { recursive: true });
  for (const [name, bytes] of files) await writeFile(join(dist, name), bytes);
}
