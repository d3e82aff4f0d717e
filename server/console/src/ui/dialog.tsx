// A question before something changes: what happens, and a way back.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Refused } from '../api/client';
import { cut, visible } from '../text';
import { Mark, Prose } from './parts';

export interface DialogProps {
  title: string;
  /** The effect, in a sentence or two, and what else has to be entered. */
  children: ComponentChildren;
  confirm: string;
  isDangerous?: boolean;
  /** The button works once this text is typed. */
  typed?: string;
  /** Carries it out. */
  act: () => Promise<void>;
  close: () => void;
}

export function Dialog({ title, children, confirm, isDangerous = false, typed, act, close }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState('');
  const [isActing, setActing] = useState(false);
  const [refusal, setRefusal] = useState<string>();
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  /** Closing gives the focus back to the button that opened it. */
  const leave = (): void => {
    dialog.current?.close();
    close();
  };
  const mayAct = !isActing && (typed === undefined || text === typed);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!mayAct) return;
    setActing(true);
    setRefusal(undefined);
    try {
      await act();
      leave();
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      const right = error instanceof Refused && error.status === 403 ? 'The token lacks the right: ' : '';
      setRefusal(`${right}${cut(visible(why), 600)}`);
      setActing(false);
    }
  };
  /** Keeps the focus inside, also where the browser would move it to its own buttons. */
  const trap = (event: KeyboardEvent): void => {
    if (event.key !== 'Tab') return;
    const own = dialog.current;
    const all = [...(own?.querySelectorAll<HTMLElement>('button, input, select') ?? [])].filter((one) => !one.matches(':disabled'));
    const [first, last] = [all[0], all.at(-1)];
    const here = document.activeElement;
    if (event.shiftKey ? here === first || here === own : here === last) {
      event.preventDefault();
      (event.shiftKey ? last : first)?.focus();
    }
  };
  return (
    <dialog
      ref={dialog}
      aria-labelledby="dialog-title"
      aria-describedby="dialog-effect"
      onKeyDown={trap}
      onCancel={(event) => {
        event.preventDefault();
        leave();
      }}
    >
      <form onSubmit={(event) => void submit(event)}>
        <h2 id="dialog-title">{title}</h2>
        <div id="dialog-effect">{children}</div>
        {typed !== undefined && (
          <label class="field">
            <span>Type <code>{cut(visible(typed), 60)}</code> to confirm</span>
            <input type="text" autocomplete="off" autocapitalize="off" spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </label>
        )}
        {refusal !== undefined && <p class="refusal" role="alert"><Mark kind="critical" /> <Prose text={refusal} /></p>}
        <div class="buttons">
          <button type="button" onClick={leave}>Cancel</button>
          <button type="submit" class={isDangerous ? 'danger' : 'primary'} disabled={!mayAct}>{isActing ? 'Asking the node …' : confirm}</button>
        </div>
      </form>
    </dialog>
  );
}
