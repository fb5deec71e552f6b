// Package recentlog keeps the newest lines of the node's log in memory.
//
// A node may have no journal, and a journal keeps what an operator looks for among that of all other programs.
package recentlog

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"unicode"
	"unicode/utf8"
)

// keptBytes bounds what is kept of one process, so that one that logs much leaves the lines of the others alone.
const keptBytes = 64 << 10

// maxProcesses bounds how many names lines may be kept under. It is more than a node has processes.
const maxProcesses = 64

// Log keeps the newest lines of each process. The zero value is not usable: call New.
type Log struct {
	mu        sync.Mutex
	processes map[string]*lines
	last      uint64        // number of the newest line
	changed   chan struct{} // closed with the next line
	closed    bool
}

// lines are those of one process, the oldest first.
type lines struct {
	list  []line
	bytes int
	// dropped is the number of the newest line that is not kept any more.
	dropped uint64
}

type line struct {
	number uint64
	text   []byte
}

var _ io.Writer = (*Log)(nil)

// New returns a log without lines.
func New() *Log { return &Log{processes: map[string]*lines{}, changed: make(chan struct{})} }

// Write takes whole lines in the form of the node's log, each of which names its process. It keeps none of p, never
// waits and always succeeds.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range bytes.Lines(p) {
		if text = bytes.TrimRight(text, "\n"); len(text) > 0 && len(text) <= keptBytes {
			l.add(processOf(text), bytes.Clone(text))
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return len(p), nil
}

func (l *Log) add(process string, text []byte) {
	of := l.processes[process]
	if of == nil {
		if len(l.processes) == maxProcesses {
			return
		}
		of = &lines{}
		l.processes[process] = of
	}
	l.last++
	of.list = append(of.list, line{number: l.last, text: text})
	for of.bytes += len(text); of.bytes > keptBytes; {
		of.bytes -= len(of.list[0].text)
		of.dropped = of.list[0].number
		of.list = slices.Delete(of.list, 0, 1)
	}
}

// Query says which lines are read.
type Query struct {
	// Process is the name of a process, as "pleg" or "prober.1", or of a service for all its replicas and for the process
	// that it shares with others. Empty is all.
	Process string
	// Words keep the lines in which one of them stands by itself, such as the name of a pod. None keeps all.
	Words []string
	// After is the number of the last line that was read; 0 reads from the beginning.
	After uint64
}

// Page is what was read.
type Page struct {
	Lines [][]byte
	// Last is for the After of the next Query.
	Last uint64
	// Missed says that lines after Query.After were dropped before they were read.
	Missed bool
	// Changed is closed when there is more to read. It is nil if there will be nothing more.
	Changed <-chan struct{}
}

// Read returns the lines that are kept, in the order in which they came.
func (l *Log) Read(q Query) Page {
	l.mu.Lock()
	defer l.mu.Unlock()
	page := Page{Last: l.last, Changed: l.changed}
	if l.closed {
		page.Changed = nil
	}
	var found []line
	for process, of := range l.processes {
		if q.Process != "" && !isOf(process, q.Process) {
			continue
		}
		page.Missed = page.Missed || q.After > 0 && of.dropped > q.After
		for _, line := range of.list {
			if line.number > q.After && q.keeps(line.text) {
				found = append(found, line)
			}
		}
	}
	slices.SortFunc(found, func(a, b line) int { return int(a.number) - int(b.number) })
	for _, line := range found {
		page.Lines = append(page.Lines, line.text)
	}
	return page
}

func (q *Query) keeps(text []byte) bool {
	return len(q.Words) == 0 || slices.ContainsFunc(q.Words, func(word string) bool { return hasWord(text, word) })
}

// Close wakes who waits for more lines. There are none.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// hasWord reports whether the word stands in the text with nothing before and behind it that a name could go on with.
func hasWord(text []byte, word string) bool {
	for at := 0; ; {
		i := bytes.Index(text[at:], []byte(word))
		if i < 0 {
			return false
		}
		before, _ := utf8.DecodeLastRune(text[:at+i])
		after, _ := utf8.DecodeRune(text[at+i+len(word):])
		if !inName(before) && !inName(after) {
			return true
		}
		at += i + 1
	}
}

func inName(r rune) bool {
	return r == '-' || r == '.' || r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r))
}
