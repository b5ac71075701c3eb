//! The heat equation on a square plate of `--cells` by `--cells` cells, `--steps` explicit steps.
//!
//! Shows: an exchange of halos by one-sided writes, without a barrier.
//!
//! Each node has a range of rows, and one row more at each side: the halo, a copy of the neighbour's edge. Other nodes write
//! into a block at any time, so the grids are memory of the program, and only edges lie in a block: those that arrive
//! and those that leave, twice. Two of each are enough: a node sends the halos of step s + 2 after it received those of step
//! s + 1, which its neighbour sends when it no longer reads those of step s.
//!
//! At the end every node writes its rows into a block of node 0, which compares them with a serial computation, bit by bit.
//!
//!     rerail launch -n 4 -- target/release/examples/heat --cells 256 --steps 1000

mod common;
#[path = "common/words.rs"]
mod words;

use common::Failure;
use rwapi::{Block, Error, Job, Net, Sid};
use std::process::ExitCode;
use words::{WORD, read_words, write_words};

const HALOS_ADDRESS: u32 = 1;
const RESULT_ADDRESS: u32 = 2;
const HALO_WRITTEN: u32 = 3;
const RESULT_WRITTEN: u32 = 4;

/// Rows with their borders or halos, one after the other.
#[derive(Clone)]
struct Grid {
    cells: Vec<f64>,
    width: usize,
}

impl Grid {
    /// `rows` rows of a plate of `cells` by `cells` cells from row `first` on. Row 0, row cells + 1, and the columns of
    /// these numbers are borders.
    fn new(first: usize, rows: usize, cells: usize) -> Self {
        let initial = |row: usize, column: usize| match (row, column) {
            (0, _) => 100.0,
            _ if row == cells + 1 || column == 0 || column == cells + 1 => 0.0,
            _ => ((row * 7 + column * 13) % 100) as f64,
        };
        let width = cells + 2;
        let cells = (0..rows * width).map(|i| initial(first + i / width, i % width)).collect();
        Self { cells, width }
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.cells[row * self.width..][..self.width]
    }

    fn set_row(&mut self, row: usize, values: impl Iterator<Item = u64>) {
        let to = &mut self.cells[row * self.width..][..self.width];
        to.iter_mut().zip(values).for_each(|(cell, bits)| *cell = f64::from_bits(bits));
    }

    /// The rows `1..=rows` as bits: without borders and halos.
    fn inner(&self, rows: usize) -> impl Iterator<Item = u64> + '_ {
        self.cells[self.width..][..rows * self.width].iter().map(|cell| cell.to_bits())
    }
}

/// One step for the rows `1..=rows`. The nodes and the serial computation use this same function, so they round in the same way.
fn step(from: &Grid, to: &mut Grid, rows: usize) {
    let width = from.width;
    for row in 1..=rows {
        let (above, here, below) = (from.row(row - 1), from.row(row), from.row(row + 1));
        let out = &mut to.cells[row * width..][..width];
        for j in 1..width - 1 {
            let around = (above[j] + below[j]) + (here[j - 1] + here[j + 1]);
            out[j] = here[j] + 0.2 * (around - 4.0 * here[j]);
        }
    }
}

/// The neighbour that has the rows above, or below.
struct Neighbour {
    node: usize,
    /// 0: above; 1: below.
    side: usize,
    /// Our row that it needs, and our row that is a copy of its edge.
    edge: usize,
    halo: usize,
    /// Its block of halos.
    net: Option<Net>,
    /// The last step whose halo has arrived.
    arrived: u32,
    /// Writes of even and of odd steps.
    sids: [Option<Sid>; 2],
}

/// Where a row lies in the block of halos: one for each side, for even and odd steps, arriving and leaving.
fn halo_offset(width: usize, leaves: bool, step: u32, side: usize) -> usize {
    (usize::from(leaves) * 4 + step as usize % 2 * 2 + side) * width * WORD
}

struct Heat<'a> {
    job: &'a Job,
    neighbours: Vec<Neighbour>,
    /// Where node 0 collects the rows.
    result: Option<Net>,
    results_arrived: usize,
}

impl Heat<'_> {
    /// Takes one message, of whatever kind and sender comes next.
    fn receive(&mut self) -> Result<(), Failure> {
        // the rows of a node that is gone are lost, so that is an error
        let (from, small) = self.job.next_message()?;
        let neighbour = self.neighbours.iter_mut().find(|n| n.node == from);
        match (common::unpack(&small), neighbour) {
            ((HALOS_ADDRESS, _, net), Some(neighbour)) => neighbour.net = Some(Net(net)),
            ((HALO_WRITTEN, step, _), Some(n)) if step == n.arrived + 1 => n.arrived = step,
            ((RESULT_ADDRESS, _, net), _) if from == 0 => self.result = Some(Net(net)),
            ((RESULT_WRITTEN, ..), _) => self.results_arrived += 1,
            (other, _) => return Err(format!("an unexpected message of node {from}: {other:?}").into()),
        }
        Ok(())
    }

    /// Receives until `find` finds something.
    fn receive_until<T>(&mut self, find: impl Fn(&Self) -> Option<T>) -> Result<T, Failure> {
        loop {
            if let Some(found) = find(self) {
                return Ok(found);
            }
            self.receive()?;
        }
    }

    /// Sends the edges of a step, and receives the neighbours'.
    fn exchange(&mut self, step: u32, grid: &mut Grid, halos: &Block) -> Result<(), Failure> {
        let width = grid.width;
        for i in 0..self.neighbours.len() {
            let net = self.receive_until(|heat| heat.neighbours[i].net)?;
            let neighbour = &mut self.neighbours[i];
            neighbour.send_edge(self.job, step, grid, halos, net)?;
        }
        for i in 0..self.neighbours.len() {
            self.receive_until(|heat| (heat.neighbours[i].arrived >= step).then_some(()))?;
            let Neighbour { side, halo, .. } = self.neighbours[i];
            grid.set_row(halo, read_words(halos, halo_offset(width, false, step, side), width));
        }
        Ok(())
    }
}

impl Neighbour {
    fn send_edge(&mut self, job: &Job, step: u32, grid: &Grid, halos: &Block, net: Net) -> Result<(), Error> {
        let width = grid.width;
        let sid = &mut self.sids[step as usize % 2];
        if let Some(sid) = *sid {
            // the edge may still be on its way since two steps
            job.wait_sent(sid)?;
        }
        let from = halo_offset(width, true, step, self.side);
        write_words(halos, from, grid.row(self.edge).iter().map(|cell| cell.to_bits()));
        // what leaves above arrives from below
        let to = net + halo_offset(width, false, step, 1 - self.side) as u64;
        let small = common::pack(HALO_WRITTEN, step, 0);
        let write = || job.write_notify(self.node, halos.net() + from as u64, to, width * WORD, &small);
        *sid = Some(job.when_possible(write)?);
        Ok(())
    }
}

/// Cells that are not as a serial computation has them.
fn count_wrong(result: &Block, cells: usize, steps: u32) -> usize {
    let mut grid = Grid::new(0, cells + 2, cells);
    let mut other = grid.clone();
    for _ in 0..steps {
        step(&grid, &mut other, cells);
        std::mem::swap(&mut grid, &mut other);
    }
    let result = read_words(result, 0, cells * grid.width);
    result.zip(grid.inner(cells)).filter(|(here, serial)| here != serial).count()
}

fn heat(job: &Job, cells: usize, steps: u32) -> Result<bool, Failure> {
    let (me, nodes) = (job.rank(), job.size());
    if cells < nodes {
        return Err("every node needs a row: --cells".into());
    }
    let width = cells + 2;
    let first_row = |node: usize| cells * node / nodes;
    let rows = first_row(me + 1) - first_row(me);
    let mut grid = Grid::new(first_row(me), rows + 2, cells);
    let mut other = grid.clone();

    let neighbour =
        |node, side, edge, halo| Neighbour { node, side, edge, halo, net: None, arrived: 0, sids: [None; 2] };
    let above = me.checked_sub(1).map(|node| neighbour(node, 0, 1, 0));
    let below = (me + 1 < nodes).then(|| neighbour(me + 1, 1, rows, rows + 1));
    let neighbours: Vec<Neighbour> = above.into_iter().chain(below).collect();

    // To wait for room without receiving is safe here: a node has at most a few messages under way to another.
    let send = |node, kind, net: Net| job.send_when_possible(node, &common::pack(kind, 0, net.0));
    let halos = job.alloc(8 * width * WORD)?;
    for neighbour in &neighbours {
        send(neighbour.node, HALOS_ADDRESS, halos.net())?;
    }
    let result_words = if me == 0 { cells * width } else { rows * width };
    let result = job.alloc(result_words * WORD)?;
    if me == 0 {
        (1..nodes).try_for_each(|node| send(node, RESULT_ADDRESS, result.net()))?;
    }

    let mut heat = Heat { job, neighbours, result: None, results_arrived: 0 };
    for s in 1..=steps {
        step(&grid, &mut other, rows);
        heat.exchange(s, &mut other, &halos)?;
        std::mem::swap(&mut grid, &mut other);
    }

    let mut right = true;
    write_words(&result, 0, grid.inner(rows));
    if me == 0 {
        heat.receive_until(|heat| (heat.results_arrived == nodes - 1).then_some(()))?;
        let wrong = count_wrong(&result, cells, steps);
        right = wrong == 0;
        match wrong {
            0 => println!("heat: {nodes} nodes, {steps} steps, right"),
            _ => println!("heat: {nodes} nodes, {steps} steps, wrong: {wrong} cells"),
        }
    } else {
        let there = heat.receive_until(|heat| heat.result)? + (first_row(me) * width * WORD) as u64;
        let small = common::pack(RESULT_WRITTEN, 0, 0);
        job.when_possible(|| job.write_notify(0, result.net(), there, result.bytes(), &small))?;
    }
    // delivers what is under way, so the blocks stay until then
    job.finalize()?;
    Ok(right)
}

fn main() -> ExitCode {
    let arguments = [("--cells", 128, 1..=10_000), ("--steps", 200, 1..=1_000_000)];
    let [cells, steps] = common::parse("heat", arguments);
    common::run("heat", |job| heat(job, cells as usize, steps as u32))
}
