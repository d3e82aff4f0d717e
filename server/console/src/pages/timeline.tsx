// The timeline of a run: what its nodes did, as a trace for Perfetto.

import { useState } from 'preact/hooks';
import { getBytes } from '../api/client';
import { bytes } from '../format';
import { handOver, PERFETTO } from '../perfetto';
import { cut, visible } from '../text';
import { saveAs } from '../ui/save';
import { plainName } from '../values';

/** The most hosts of a trace. */
const HOSTS = 64;

export function RunTimeline({ name, path }: { name: string; path: string }) {
  const [state, setState] = useState('');
  const [fault, setFault] = useState('');
  const [isBusy, setBusy] = useState(false);
  const file = `${plainName(name)}.trace.json`;
  const act = async (use: (trace: ArrayBuffer) => Promise<string> | string): Promise<void> => {
    setBusy(true);
    setFault('');
    setState('The nodes are asked for the trace …');
    try {
      setState(await use(await getBytes(`${path}/trace?limit=${HOSTS}`)));
    } catch (error) {
      setState('');
      setFault(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  const download = (): void => void act((trace) => {
    saveAs(trace, file);
    return `The trace has ${bytes(trace.byteLength)}.`;
  });
  const show = (): void => {
    // At once: a window that opens later is one that browsers block.
    const opened = window.open(PERFETTO);
    if (!opened) return setFault('The browser blocked the window. Allow it, or download the trace.');
    void act(async (trace) => {
      await handOver(window, opened, PERFETTO, { buffer: trace, title: `shardd run ${cut(visible(name), 60)}`, fileName: file });
      return `Perfetto has the trace, of ${bytes(trace.byteLength)}.`;
    });
  };
  return (
    <section>
      <h2>Timeline</h2>
      <p class="muted note">What each node filled, sent, received and fetched for the run, and how its ranks read and waited in the last hour. Perfetto shows it in a window of its own, in your browser. Without internet, download the trace and open it elsewhere.</p>
      <p class="tools">
        <button type="button" class="primary" disabled={isBusy} onClick={show}>Open in Perfetto</button>
        <button type="button" disabled={isBusy} onClick={download}>Download trace</button>
        <span role="status">{state}</span>
        <span role="alert" class="refusal">{fault && cut(visible(fault), 300)}</span>
      </p>
    </section>
  );
}
