//! Nodes as network namespaces with shaped rails.
