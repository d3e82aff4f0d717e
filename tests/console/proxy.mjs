// Serves server/console/dist, and passes questions on to a node: to develop against real answers without building the node.
//
//     node tests/console/proxy.mjs http://127.0.0.1:7700 8099

import { createServer, request as ask } from 'node:http';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DIST, POLICY, TYPES } from './fixture-server.mjs';

export function proxy(node) {
  const to = new URL(node);
  return createServer(async (request, response) => {
    const path = new URL(request.url, 'http://proxy').pathname;
    if (path.startsWith('/v1/')) {
      // The node takes requests for its own name only, and from pages of its own origin.
      const { origin: _, ...headers } = request.headers;
      const passed = ask({ host: to.hostname, port: to.port, path: request.url, method: request.method, headers: { ...headers, host: to.host } }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      });
      passed.on('error', () => response.destroy());
      response.on('close', () => passed.destroy());
      request.pipe(passed);
      return;
    }
    const name = path === '/' ? 'index.html' : path.slice(1);
    const bytes = /^[\w.]+$/.test(name) ? await readFile(join(DIST, name)).catch(() => undefined) : undefined;
    if (!bytes) return response.writeHead(404).end();
    response.writeHead(200, { 'content-type': TYPES[name.split('.').at(-1)], 'content-security-policy': POLICY, 'x-content-type-options': 'nosniff', 'cache-control': 'no-cache' });
    response.end(bytes);
  });
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [node = 'http://127.0.0.1:7700', port = '8099'] = process.argv.slice(2);
  proxy(node).listen(Number(port), '127.0.0.1', () => console.log(`${node} at http://127.0.0.1:${port}/`));
}
