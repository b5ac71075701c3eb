//! Kinds of RDMA devices that guests have. Owns: their names.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The variable by which a program chooses kinds of rail.
pub(crate) const KINDS_ENV: &str = "FI_RERAIL_KINDS";

/// What the RDMA devices of guests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rdma {
    /// soft-RoCE.
    Roce,
    /// soft-iWARP.
    Iwarp,
}

impl Rdma {
    /// The word for it, which is also the kind of rail in `FI_RERAIL_KINDS`.
    pub fn name(self) -> &'static str {
        match self {
            Rdma::Roce => "roce",
            Rdma::Iwarp => "iwarp",
        }
    }

    /// The kernel's word for it.
    pub(crate) fn link_type(self) -> &'static str {
        match self {
            Rdma::Roce => "rxe",
            Rdma::Iwarp => "siw",
        }
    }
}

impl fmt::Display for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rdma {
    type Err = String;

    fn from_str(text: &str) -> Result<Rdma, String> {
        [Rdma::Roce, Rdma::Iwarp]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("`{text}` is no kind of RDMA device: choose roce or iwarp"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_and_written_back() {
        for kind in [Rdma::Roce, Rdma::Iwarp] {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("infiniband".parse::<Rdma>().unwrap_err().contains("roce or iwarp"));
    }
}
