//! A quota for all clients together, and a smaller one for each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::client::Client;

/// The lent memory, and its borrowers.
#[derive(Clone, Debug)]
pub(super) struct Quota {
    most: u64,
    a_client: u64,
    lent: Arc<Mutex<Lent>>,
}

#[derive(Debug, Default)]
struct Lent {
    all: u64,
    by: HashMap<Client, u64>,
}

/// Some of it, until it is dropped.
#[derive(Debug)]
pub(super) struct Loan {
    client: Client,
    amount: u64,
    quota: Quota,
}

/// There is too little left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    /// Others have the rest.
    OfAll,
    /// The client has its part.
    OfItsPart,
}

impl Quota {
    pub(super) fn new(most: u64, a_client: u64) -> Quota {
        Quota { most, a_client, lent: Arc::default() }
    }

    /// Lends some of it.
    pub(super) fn lend(&self, client: Client, amount: u64) -> Result<Loan, Short> {
        let mut lent = self.lent();
        let has = lent.by.get(&client).copied().unwrap_or(0);
        if has.saturating_add(amount) > self.a_client {
            return Err(Short::OfItsPart);
        }
        if lent.all.saturating_add(amount) > self.most {
            return Err(Short::OfAll);
        }
        lent.all += amount;
        lent.by.insert(client, has + amount);
        drop(lent);
        Ok(Loan { client, amount, quota: self.clone() })
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut lent = self.quota.lent();
        lent.all -= self.amount;
        let left = lent.by.get(&self.client).copied().unwrap_or(0).saturating_sub(self.amount);
        match left {
            0 => lent.by.remove(&self.client),
            left => lent.by.insert(self.client, left),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn client(n: u8) -> Client {
        Client::Address(IpAddr::from([127, 0, 0, n]))
    }

    proptest! {
        #[test]
        fn no_client_has_more_than_its_part_and_what_comes_back_is_lent_again(
            events in proptest::collection::vec((0u8..4, 0u64..60, any::<bool>()), 1..60),
        ) {
            let quota = Quota::new(100, 50);
            let mut loans: Vec<Loan> = Vec::new();
            for (of, amount, gives_back) in events {
                if gives_back && !loans.is_empty() {
                    loans.remove(usize::from(of) % loans.len());
                }
                let has = |of| loans.iter().filter(|loan| of == loan.client).map(|loan| loan.amount).sum::<u64>();
                let all: u64 = loans.iter().map(|loan| loan.amount).sum();
                let expected = match (has(client(of)) + amount > 50, all + amount > 100) {
                    (true, _) => Some(Short::OfItsPart),
                    (false, true) => Some(Short::OfAll),
                    (false, false) => None,
                };
                match quota.lend(client(of), amount) {
                    Ok(loan) => {
                        prop_assert_eq!(expected, None);
                        loans.push(loan);
                    }
                    Err(short) => prop_assert_eq!(expected, Some(short)),
                }
            }
            drop(loans);
            prop_assert!(quota.lent().all == 0 && quota.lent().by.is_empty());
        }
    }
}
