// Simulations of plans, as the answers of a node describe them. The forms are those of client/simulation.

/** The answer to `versions/{id}/simulation`; `of` is a dataset of datasets.mjs. */
export function simulation(of, query) {
  const number = (name, usual) => Number(query.get(name) ?? usual);
  const [partitions, nodes, epochs] = [number('partitions', 16), number('nodes', 4), number('epochs', 10)];
  const shares = (query.get('q') ?? '0.1').split(',').map(Number);
  const share = (epoch) => shares[Math.min(epoch, shares.length - 1)];
  const link = 1.25e9;
  const [row_bytes, even] = [of.samples * 2048, 1 / partitions];
  const left = [];
  for (let epoch = 0, taken = 0; epoch < epochs; epoch += 1) {
    left.push(Math.max(0, 1 - taken));
    taken += share(epoch);
  }
  const home = left.map((part) => part + (1 - part) * even);
  const bytes = (epoch) => Math.round(share(epoch) * row_bytes * (1 - 1 / nodes));
  const largest = Math.round((bytes(0) / nodes) * 1.04);
  const step = query.has('step_ms') ? number('step_ms', 0) / 1000 : undefined;
  const matrix = query.has('matrix') ? number('matrix', 0) : undefined;
  return {
    report: {
      plan: 'ab'.repeat(32), samples: of.samples, row_bytes, partitions, grain_rows: number('grain_rows', 8), grains: Math.ceil(of.samples / 8), chunks: 16, virtual_ranks: partitions,
      link_bytes_per_second: link, global_batch_size: 32 * nodes, steps_per_epoch: Math.ceil(of.samples / (32 * nodes)),
      summary: {
        counted_epochs: epochs, epochs, moved_share: share(0) * (1 - even), predicted_moved_share: share(0) * (1 - even),
        exchanged_bytes: left.reduce((sum, _, epoch) => sum + bytes(epoch), 0), predicted_exchanged_bytes: bytes(0) * epochs, largest_node_bytes: largest, remote_read_bytes: 0, most_peers: nodes - 1,
        mean_held_bytes: row_bytes / nodes, peak_node_bytes: Math.round((row_bytes / nodes) * 1.1), peak_node_samples: of.samples / nodes, slowest_exchange_seconds: largest / link, hiding_step_seconds: largest / link / 40,
        ...(step === undefined ? {} : { hidden_share: 0.8, exposed_seconds: largest / link / 5 }), partitions_moved: 0, refetched_from_peers: 0, refetched_from_store: 0,
      },
      epochs: left.map((_, epoch) => ({
        epoch, nodes, is_counted: true, grains_exchanged: 10, moved_share: share(epoch), predicted_moved_share: share(epoch), exchanged_bytes: Math.round(bytes(epoch) * (0.99 + 0.02 * (epoch % 2))), predicted_exchanged_bytes: bytes(epoch),
        largest_node_bytes: largest, peers: { mean: nodes - 1, largest: nodes - 1 }, peak_node_bytes: 1, remote_read_bytes: 0, exchange_seconds: largest / link, home_share: { predicted: home[epoch], counted: home[epoch], of_grains: 100 },
      })),
      nodes: Array.from({ length: nodes }, (_, node) => ({ node, partitions: partitions / nodes, held_bytes: row_bytes / nodes, sent_bytes: largest, received_bytes: largest, most_peers: nodes - 1, remote_read_bytes: 0, peak_bytes: row_bytes / nodes })),
    },
    ...(matrix === undefined ? {} : {
      matrix: {
        epoch: matrix, partitions, of_grains: 100,
        rows: Array.from({ length: Math.min(64, partitions) }, (_, row) => Array.from({ length: Math.min(64, partitions) }, (_, column) => (row === column ? home[matrix] : (1 - home[matrix]) / (Math.min(64, partitions) - 1)))),
      },
    }),
    labels: { kinds: 10, skew: left.map((part) => 0.02 + 0.7 * part), floor: 0.02, begins_with: 2.4, in_micro_batch: 2.1, in_micro_batch_of_all: 9.6 },
  };
}
