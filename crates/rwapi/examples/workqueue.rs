//! A work queue: node 0 hands out `--tasks` tasks, the other nodes work. Task t counts the primes among `--numbers` numbers.
//!
//! Shows: a job that goes on when a node dies. [`Job::next_received`] reports a dead node after its last message; node 0 then
//! hands out the tasks of this node again. Where no worker is left, node 0 works itself.
//!
//! With `--die K` node K ends in the middle of its second task. The launcher must let the others go on:
//!
//!     rerail launch --keep-going -n 4 -- target/release/examples/workqueue --die 2

mod common;

use rwapi::{Error, Job, Received};
use std::collections::VecDeque;
use std::process::{ExitCode, exit};

const TASK: u32 = 1;
const RESULT: u32 = 2;
const STOP: u32 = 3;

/// Tasks that a worker has: it has the next one when it sends a result. So few are under way that waiting for room
/// without receiving is safe.
const TASKS_PER_WORKER: usize = 2;

fn count_primes(task: u32, numbers: u64) -> u64 {
    let first = u64::from(task) * numbers;
    let is_prime = |n: &u64| *n >= 2 && (2..).take_while(|d| d * d <= *n).all(|d| n % d != 0);
    (first..first + numbers).filter(is_prime).count() as u64
}

/// The same for all tasks, by a sieve.
fn expected(tasks: u32, numbers: u64) -> u64 {
    let mut composite = vec![false; tasks as usize * numbers as usize];
    let mut primes = 0;
    for n in 2..composite.len() {
        if !composite[n] {
            primes += 1;
            composite[n..].iter_mut().step_by(n).skip(1).for_each(|multiple| *multiple = true);
        }
    }
    primes
}

fn work(job: &Job, numbers: u64, dies: bool) -> Result<(), Error> {
    let mut received = 0;
    loop {
        let small = match job.next_received()? {
            Received::Message(_, small) => small,
            Received::Gone(0) => return Err(Error::Gone(0)),
            // another worker: node 0 sees to its tasks
            Received::Gone(_) => continue,
        };
        let (kind, task, _) = common::unpack(&small);
        if kind == STOP {
            return Ok(());
        }
        received += 1;
        if dies && received == 2 {
            exit(1);
        }
        let primes = count_primes(task, numbers);
        job.send_when_possible(0, &common::pack(RESULT, task, primes))?;
    }
}

/// A worker as node 0 sees it.
#[derive(Clone, Default)]
struct Worker {
    gone: bool,
    tasks: Vec<u32>,
}

/// Gives each worker the tasks that it lacks, one in turn.
fn hand_out(job: &Job, workers: &mut [Worker], free: &mut VecDeque<u32>) -> Result<(), Error> {
    for most in 1..=TASKS_PER_WORKER {
        for (worker, node) in workers.iter_mut().zip(1..).filter(|(worker, _)| !worker.gone) {
            if worker.tasks.len() >= most {
                continue;
            }
            let Some(&task) = free.front() else { return Ok(()) };
            match job.send_when_possible(node, &common::pack(TASK, task, 0)) {
                Ok(()) => {
                    free.pop_front();
                    worker.tasks.push(task);
                }
                // its last messages still come; its tasks become free after them
                Err(e) if e.is_gone() => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Node 0's part: how many primes there are.
fn manage(job: &Job, tasks: u32, numbers: u64) -> Result<u64, Error> {
    let mut workers = vec![Worker::default(); job.size() - 1];
    let mut free: VecDeque<u32> = (0..tasks).collect();
    let (mut primes, mut done) = (0, 0);
    while done < tasks {
        hand_out(job, &mut workers, &mut free)?;
        if workers.iter().all(|worker| worker.gone) {
            // all tasks that are not done are free
            primes += free.drain(..).map(|task| count_primes(task, numbers)).sum::<u64>();
            break;
        }
        match job.next_received()? {
            Received::Message(node, small) => {
                let (kind, task, value) = common::unpack(&small);
                let has = &mut workers[node - 1].tasks;
                // counted once, whatever arrives
                if let Some(i) = has.iter().position(|t| *t == task).filter(|_| kind == RESULT) {
                    has.swap_remove(i);
                    primes += value;
                    done += 1;
                }
            }
            Received::Gone(node) => {
                let worker = &mut workers[node - 1];
                let again = std::mem::take(&mut worker.tasks);
                worker.gone = true;
                println!("workqueue: node {node} is gone, {} tasks are handed out again", again.len());
                free.extend(again);
            }
        }
    }
    for (_, node) in workers.iter().zip(1..).filter(|(worker, _)| !worker.gone) {
        match job.send_when_possible(node, &common::pack(STOP, 0, 0)) {
            Err(e) if !e.is_gone() => return Err(e),
            _ => {}
        }
    }
    Ok(primes)
}

fn workqueue(job: &Job, tasks: u32, numbers: u64, die: u64) -> Result<bool, Error> {
    let mut right = true;
    if job.rank() == 0 {
        let (nodes, primes, all) = (job.size(), manage(job, tasks, numbers)?, expected(tasks, numbers));
        right = primes == all;
        if right {
            println!("workqueue: {nodes} nodes, {tasks} tasks, right");
        } else {
            println!("workqueue: {nodes} nodes, {tasks} tasks, wrong: {primes} primes instead of {all}");
        }
    } else {
        work(job, numbers, job.rank() as u64 == die)?;
    }
    job.finalize()?;
    Ok(right)
}

fn main() -> ExitCode {
    // node 0 cannot die, so 0 is none
    let arguments =
        [("--tasks", 200, 1..=10_000), ("--numbers", 5000, 1..=10_000), ("--die", 0, 1..=1_000_000)];
    let [tasks, numbers, die] = common::parse("workqueue", arguments);
    common::run("workqueue", |job| Ok(workqueue(job, tasks as u32, numbers, die)?))
}
