//! Which node the demo kills, and when. Decides; does not kill.

use std::str::FromStr;

/// `--kill=NODE@EPOCH`: the node's number from 1, and a moment in epochs from the start, such as 2.5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kill {
    node: Option<u32>,
    epoch: Option<f64>,
}

/// A node to be killed once training has come this far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    /// Number of the node, from 1.
    pub(crate) node: u32,
    /// Epochs since the start, with the fraction of the epoch under way.
    pub(crate) epoch: f64,
}

/// The error in a `--kill`.
#[derive(Debug, thiserror::Error, PartialEq)]
pub(crate) enum KillError {
    #[error(
        "`{0}` is not a moment to kill a node: use N, N@EPOCH or @EPOCH, such as `n2@1.5`, `first` or `@3`"
    )]
    Syntax(String),
    #[error("--kill names node {node}, but there are {nodes}: choose one of n1 to n{nodes}")]
    NoSuchNode { node: u32, nodes: u32 },
    #[error(
        "--kill names epoch {epoch}, but training is over then: choose a moment from 0 up to, and not including, {epochs}"
    )]
    TooLate { epoch: f64, epochs: u32 },
    #[error("--kill would leave no node alive: kill fewer than {nodes}, or start more with --nodes")]
    NoneLeft { nodes: u32 },
}

impl FromStr for Kill {
    type Err = KillError;

    fn from_str(text: &str) -> Result<Kill, KillError> {
        let refused = || KillError::Syntax(text.to_owned());
        let (node, epoch) = text.split_once('@').map_or((text, None), |(node, epoch)| (node, Some(epoch)));
        let node = match node {
            "" => None,
            "first" => Some(1),
            name => Some(name.strip_prefix('n').unwrap_or(name).parse().map_err(|_| refused())?),
        };
        let epoch = epoch.map(|epoch| epoch.parse::<f64>().map_err(|_| refused())).transpose()?;
        match epoch {
            Some(epoch) if !epoch.is_finite() || epoch < 0.0 => Err(refused()),
            epoch => Ok(Kill { node, epoch }),
        }
    }
}

impl Kill {
    /// Fills in the missing parts: the second node (the only one dies never), in the middle of the middle
    /// epoch.
    pub(crate) fn plan(self, nodes: u32, epochs: u32) -> Result<Planned, KillError> {
        let node = self.node.unwrap_or(2.min(nodes));
        let epoch = self.epoch.unwrap_or(f64::from(epochs / 2) + 0.5);
        if nodes < 2 {
            return Err(KillError::NoneLeft { nodes });
        }
        if node == 0 || node > nodes {
            return Err(KillError::NoSuchNode { node, nodes });
        }
        if epoch >= f64::from(epochs) {
            return Err(KillError::TooLate { epoch, epochs });
        }
        Ok(Planned { node, epoch })
    }
}

/// All kills in the order of their moments; refused if no node would be left.
pub(crate) fn plan_all(kills: &[Kill], nodes: u32, epochs: u32) -> Result<Vec<Planned>, KillError> {
    let mut planned = kills.iter().map(|kill| kill.plan(nodes, epochs)).collect::<Result<Vec<_>, _>>()?;
    planned.sort_by(|a, b| a.epoch.total_cmp(&b.epoch));
    let doomed: std::collections::BTreeSet<u32> = planned.iter().map(|kill| kill.node).collect();
    if !planned.is_empty() && doomed.len() >= nodes as usize {
        return Err(KillError::NoneLeft { nodes });
    }
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(text: &str) -> Result<Planned, KillError> {
        text.parse::<Kill>()?.plan(4, 10)
    }

    #[test]
    fn node_and_moment_may_each_be_left_out() {
        assert_eq!(planned("n3@1.5"), Ok(Planned { node: 3, epoch: 1.5 }));
        assert_eq!(planned("first"), Ok(Planned { node: 1, epoch: 5.5 }));
        assert_eq!(planned("4"), Ok(Planned { node: 4, epoch: 5.5 }));
        assert_eq!(planned("@0"), Ok(Planned { node: 2, epoch: 0.0 }));
        assert_eq!(planned(""), Ok(Planned { node: 2, epoch: 5.5 }));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_what_can() {
        assert_eq!(planned("n5"), Err(KillError::NoSuchNode { node: 5, nodes: 4 }));
        assert_eq!(planned("@10"), Err(KillError::TooLate { epoch: 10.0, epochs: 10 }));
        for odd in ["x", "n2@", "n2@-1", "n2@nan", "@inf"] {
            assert_eq!(planned(odd), Err(KillError::Syntax(odd.to_owned())));
        }
        let twice: Vec<Kill> = ["n1", "n2"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(plan_all(&twice, 2, 10), Err(KillError::NoneLeft { nodes: 2 }));
        assert_eq!(plan_all(&twice[..1], 1, 10), Err(KillError::NoneLeft { nodes: 1 }));
        assert_eq!(plan_all(&[], 1, 10), Ok(Vec::new()));
    }
}
