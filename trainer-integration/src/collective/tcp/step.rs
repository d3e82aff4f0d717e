//! How far the messages of one transfer have come, stream by stream.

use std::iter::Peekable;
use std::time::Instant;

use super::peer::Peer;
use super::wire::{HEADER_BYTES, Header};
use crate::collective::group_state::GroupState;
use crate::collective::pieces::Pieces;
use crate::collective::{CollectiveError, Incoming, Outgoing, Piece, Place, Sink};

/// The messages that a rank sends and receives at once.
pub(super) struct Step<'t, 'a> {
    since: Instant,
    sending: Vec<Sending<'t>>,
    receiving: Vec<Receiving>,
    incoming: &'t mut [Incoming<'a>],
    /// Bytes received of each message.
    received: Vec<usize>,
    /// Whether it has waited long enough that a rank may have given up behind a piece whose time has not
    /// come.
    pub(super) looks_ahead: bool,
    /// The pieces that the sink takes, in the order in which it does.
    deliveries: Peekable<Deliveries>,
}

type Deliveries = std::iter::FilterMap<Pieces, fn((usize, std::ops::Range<usize>)) -> Option<(usize, usize)>>;

/// The outgoing messages of one stream.
struct Sending<'t> {
    messages: Vec<&'t [u8]>,
    pieces: Pieces,
    frame: Option<Frame<'t>>,
}

struct Frame<'t> {
    header: [u8; HEADER_BYTES],
    payload: &'t [u8],
    written: usize,
}

/// The incoming messages of one stream.
#[derive(Default)]
struct Receiving {
    /// The messages, by their place among all that are expected.
    messages: Vec<usize>,
    unfinished: usize,
    /// The piece in the peer's scratch memory that waits for its turn.
    held: Option<usize>,
}

impl<'t, 'a> Step<'t, 'a> {
    pub(super) fn new(
        standing: &GroupState,
        outgoing: &[Outgoing<'t>],
        incoming: &'t mut [Incoming<'a>],
    ) -> Step<'t, 'a> {
        let mut messages = vec![Vec::new(); standing.world];
        for &Outgoing { to, bytes } in outgoing {
            standing.check_other(to);
            messages[to as usize].push(bytes);
        }
        let sending = messages.into_iter().map(|messages| Sending {
            pieces: Pieces::of(messages.iter().map(|message| message.len())),
            messages,
            frame: None,
        });
        let mut receiving: Vec<Receiving> = (0..standing.world).map(|_| Receiving::default()).collect();
        for (index, Incoming { from, .. }) in incoming.iter().enumerate() {
            standing.check_other(*from);
            receiving[*from as usize].messages.push(index);
            receiving[*from as usize].unfinished += 1;
        }
        let to_sink = incoming.iter().map(|incoming| match incoming.into {
            Place::Sink(length) => length,
            _ => 0,
        });
        let of_some: fn(_) -> _ = |(message, range): (usize, std::ops::Range<usize>)| {
            (!range.is_empty()).then_some((message, range.start))
        };
        Step {
            since: Instant::now(),
            sending: sending.collect(),
            receiving,
            received: vec![0; incoming.len()],
            looks_ahead: false,
            deliveries: Pieces::of(to_sink).filter_map(of_some).peekable(),
            incoming,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.waits_for().is_empty()
    }

    /// The ranks that have not sent all expected messages; when there are none, those that have not taken
    /// theirs.
    pub(super) fn waits_for(&self) -> Vec<usize> {
        let ranks = 0..self.receiving.len();
        let silent: Vec<usize> = ranks.clone().filter(|&rank| self.receiving[rank].unfinished > 0).collect();
        if silent.is_empty() { ranks.filter(|&rank| self.is_sending(rank)).collect() } else { silent }
    }

    /// Whether something for the rank is not written yet.
    pub(super) fn is_sending(&self, rank: usize) -> bool {
        let sending = &self.sending[rank];
        sending.frame.is_some() || sending.pieces.clone().next().is_some()
    }

    /// Writes up to a piece; whether anything was written.
    pub(super) fn send(
        &mut self,
        rank: usize,
        peer: &mut Peer,
        standing: &mut GroupState,
    ) -> Result<bool, CollectiveError> {
        let sending = &mut self.sending[rank];
        if sending.frame.is_none() {
            sending.frame = sending.pieces.next().map(|(message, range)| {
                let (bytes, offset) = (sending.messages[message], range.start);
                let payload = &bytes[range];
                let header =
                    Header::of_piece(standing.operation(), message as u32, bytes.len(), offset, payload);
                standing.bytes_sent += payload.len() as u64;
                Frame { header, payload, written: 0 }
            });
        }
        if sending.frame.is_none() || !peer.is_writable {
            return Ok(false);
        }
        sending.write(peer).map_err(|why| peer.last_word(why))
    }

    /// The rest of a partly written frame goes out before anything else.
    pub(super) fn finish_later(
        &mut self,
        rank: usize,
        peer: &Peer,
        header: &[u8; HEADER_BYTES],
        written: usize,
    ) {
        if (1..HEADER_BYTES).contains(&written) || written == HEADER_BYTES && !peer.is_flushed() {
            self.sending[rank].frame = Some(Frame { header: *header, payload: &[], written });
        }
    }

    /// Writes the rest of a piece that is half sent; whether none is left.
    pub(super) fn finish_piece(&mut self, rank: usize, peer: &mut Peer) -> Result<bool, CollectiveError> {
        let sending = &mut self.sending[rank];
        if sending.frame.as_ref().is_some_and(|frame| frame.written == 0) {
            sending.frame = None;
        }
        while sending.frame.is_some() && peer.is_writable {
            sending.write(peer)?;
        }
        Ok(sending.frame.is_none())
    }

    /// Reads up to a piece; whether anything has come. Of a rank of which nothing is expected, or not yet, it takes notice of
    /// what else it says.
    pub(super) fn receive(
        &mut self,
        rank: usize,
        peer: &mut Peer,
        standing: &mut GroupState,
    ) -> Result<bool, CollectiveError> {
        let receiving = &mut self.receiving[rank];
        if receiving.held.is_some() {
            return Ok(false);
        }
        let is_expected = receiving.unfinished > 0;
        let header = match peer.header() {
            Ok(Some(header)) if is_expected => header,
            // Early, or nothing.
            Ok(_) if self.looks_ahead => return peer.find_abort().map(|()| false),
            Ok(_) => return Ok(false),
            // Only an end: that is reported when it is waited for.
            Err(CollectiveError::Gone { .. }) if !is_expected => return Ok(false),
            Err(why) => return Err(why),
        };
        standing.check_step(rank, header.operation)?;
        standing.hear(rank, self.since);
        let Some(&index) = receiving.messages.get(header.message as usize) else {
            let expected = receiving.messages.len();
            return Err(peer.nonsense(format!("message {} of {expected}", header.message)));
        };
        let expected = match &self.incoming[index].into {
            Place::Slice(bytes) => bytes.len(),
            Place::Whole(_) => header.length,
            Place::Sink(length) => *length,
        };
        if header.length != expected {
            return Err(peer.nonsense(format!("{} bytes, {expected} expected", header.length)));
        }
        let piece = Pieces::length_at(self.received[index], expected);
        if (header.offset, header.payload) != (self.received[index], piece) {
            return Err(peer.nonsense("a piece out of turn"));
        }
        let range = header.offset..header.offset + header.payload;
        let is_complete = match &mut self.incoming[index].into {
            Place::Slice(bytes) => peer.read_payload(&mut bytes[range])?,
            Place::Whole(bytes) => {
                bytes.resize(range.end, 0); // believed only where bytes arrive
                peer.read_payload(&mut bytes[range])?
            }
            Place::Sink(_) => peer.read_to_scratch()?,
        };
        if !is_complete {
            return Ok(false);
        }
        self.received[index] += header.payload;
        if matches!(self.incoming[index].into, Place::Sink(1..)) {
            receiving.held = Some(header.payload);
        } else {
            peer.next_frame();
            receiving.unfinished -= usize::from(self.received[index] == expected);
        }
        Ok(true)
    }

    /// Gives the sink the pieces whose turn it is; whether there was one.
    pub(super) fn deliver(&mut self, peers: &mut [Option<Peer>], sink: Sink<'_>) -> bool {
        let mut is_delivered = false;
        while let Some(&(incoming, offset)) = self.deliveries.peek() {
            let rank = self.incoming[incoming].from as usize;
            let receiving = &mut self.receiving[rank];
            let (Some(length), Some(peer)) = (receiving.held, &mut peers[rank]) else { break };
            // Pieces of one stream come in this order, so the held piece is the due one.
            sink(Piece { incoming, offset, bytes: peer.scratch(length) });
            receiving.held = None;
            peer.next_frame();
            let is_over = matches!(self.incoming[incoming].into, Place::Sink(whole) if whole == self.received[incoming]);
            receiving.unfinished -= usize::from(is_over);
            self.deliveries.next();
            is_delivered = true;
        }
        is_delivered
    }
}

impl Sending<'_> {
    fn write(&mut self, peer: &mut Peer) -> Result<bool, CollectiveError> {
        let Some(frame) = &mut self.frame else { return Ok(false) };
        let header = &frame.header[frame.written.min(HEADER_BYTES)..];
        let payload = &frame.payload[frame.written.saturating_sub(HEADER_BYTES)..];
        let written = peer.write(header, payload)?;
        frame.written += written;
        // Who waits for the frame must not wait for this rank's next message, with which the rest would be sent.
        let is_over = frame.written == HEADER_BYTES + frame.payload.len() && peer.is_flushed();
        if is_over {
            self.frame = None;
        }
        Ok(written > 0 || is_over)
    }
}
