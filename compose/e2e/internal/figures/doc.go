// Package figures compares what two agents say that the same pods use: summaries of the Summary API, and pages of
// metrics.
//
// An answer becomes facts, each with a path: the path of a field in the summary, or a series with all its labels.
// Compare lists the paths that only one agent has, and the values that are not close enough. Values that move with time
// are judged by how fast they do, with Rate.
package figures
