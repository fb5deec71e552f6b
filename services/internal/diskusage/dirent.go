package diskusage

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// dirent is an entry as getdents64(2) returns it.
type dirent struct {
	// next is the position in the directory after this entry, for lseek(2).
	next int64
	// kind is a DT_ constant; some file systems say DT_UNKNOWN of all.
	kind byte
	name []byte
}

// headOfDirent is what comes before the name: inode, position, length, kind.
const headOfDirent = 8 + 8 + 2 + 1

var errDirent = errors.New("malformed directory entry")

// nextDirent cuts the first entry off. Its name is a part of buf.
func nextDirent(buf []byte) (e dirent, rest []byte, err error) {
	if len(buf) < headOfDirent {
		return dirent{}, nil, errDirent
	}
	length := int(binary.NativeEndian.Uint16(buf[16:]))
	if length < headOfDirent || length > len(buf) {
		return dirent{}, nil, errDirent
	}
	name := buf[headOfDirent:length]
	end := bytes.IndexByte(name, 0)
	if end <= 0 || bytes.IndexByte(name[:end], '/') >= 0 {
		return dirent{}, nil, errDirent
	}
	return dirent{
		next: int64(binary.NativeEndian.Uint64(buf[8:])),
		kind: buf[18],
		name: name[:end],
	}, buf[length:], nil
}
