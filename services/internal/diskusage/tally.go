package diskusage

import "math"

const (
	// maxLinks bounds how many files with further hard links a walk remembers: 1 to 2 MiB.
	maxLinks = 1 << 16

	// blockSize is the unit of stat's blocks, whatever the file system's is.
	blockSize = 512
)

// tally sums up what a walk sees. A file with several hard links counts once.
type tally struct {
	blocks, inodes uint64
	// links has, by inode, how many more links there may be to a file that was counted.
	links map[uint64]uint32
	// full says that there were too many to remember. From then on those that are not remembered count with a share
	// for each link. Their sum is exact if all links are seen, and too low if some are elsewhere.
	full                       bool
	sharedBlocks, sharedInodes float64
}

// add counts a file or directory. A directory has one name, whatever its number of links is.
func (t *tally) add(inode uint64, links uint32, blocks uint64, directory bool) {
	if directory || links <= 1 {
		t.blocks += blocks
		t.inodes++
		return
	}
	if left, ok := t.links[inode]; ok {
		t.seen(inode, left)
		return
	}
	t.full = t.full || len(t.links) >= maxLinks
	if t.full {
		t.sharedBlocks += float64(blocks) / float64(links)
		t.sharedInodes += 1 / float64(links)
		return
	}
	if t.links == nil {
		t.links = map[uint64]uint32{}
	}
	t.links[inode] = links - 1
	t.blocks += blocks
	t.inodes++
}

// seen forgets a file when all of its links were seen. Once files count by shares it stays, since one that is not
// remembered is taken for one of them.
func (t *tally) seen(inode uint64, left uint32) {
	switch {
	case t.full:
	case left <= 1:
		delete(t.links, inode)
	default:
		t.links[inode] = left - 1
	}
}

func (t *tally) usage() (bytes, inodes uint64) {
	return t.blocks*blockSize + uint64(math.Round(t.sharedBlocks*blockSize)),
		t.inodes + uint64(math.Round(t.sharedInodes))
}
