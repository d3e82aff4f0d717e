// Hands a trace over to Perfetto, in a window of its own: that window asks Perfetto's host for the program, and this page asks none but its node.

/** Where Perfetto is. */
export const PERFETTO = 'https://ui.perfetto.dev';
/** How often Perfetto is asked whether it is ready, and for how long, in milliseconds. */
const EVERY = 100;
const PATIENCE = 30_000;

/**
 * Gives a window a trace once it says that it is ready. `host` is the window of this page; messages of other windows, or of another
 * origin, count for nothing, and no other origin gets the trace.
 */
export function handOver(host: Window, opened: Window, origin: string, trace: { buffer: ArrayBuffer; title: string; fileName: string }, patience = PATIENCE): Promise<void> {
  return new Promise((done, failed) => {
    const until = Date.now() + patience;
    const end = (): void => {
      clearInterval(timer);
      host.removeEventListener('message', heard);
    };
    const heard = (event: MessageEvent): void => {
      if (event.source !== opened || event.origin !== origin || event.data !== 'PONG') return;
      end();
      opened.postMessage({ perfetto: trace }, origin);
      done();
    };
    const ask = (): void => {
      if (opened.closed) {
        end();
        failed(new Error('Its window was closed.'));
      } else if (Date.now() > until) {
        end();
        failed(new Error('Perfetto does not answer.'));
      } else opened.postMessage('PING', origin);
    };
    host.addEventListener('message', heard);
    const timer = setInterval(ask, EVERY);
    ask();
  });
}
