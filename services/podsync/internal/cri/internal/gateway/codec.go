package gateway

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// frame is one message, not decoded: what the gateway passes on it does not read, so
// that fields which it does not know survive.
type frame struct {
	data []byte
	// short returns what is kept of the data that comes; nil keeps all.
	short func(data []byte) ([]byte, error)
	// off is called once the frame is off, or its call has ended; nil calls nothing.
	off func()
}

// frameCodec leaves messages as they are.
type frameCodec struct{}

var _ encoding.CodecV2 = frameCodec{}

// Marshal implements encoding.CodecV2.
func (frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("the gateway passes frames on, not a %T", v)
	}
	if f.off != nil {
		return mem.BufferSlice{hold(f.data, f.off)}, nil
	}
	return mem.BufferSlice{mem.SliceBuffer(f.data)}, nil
}

// Unmarshal implements encoding.CodecV2; it copies, since gRPC takes the buffers back.
func (frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("the gateway passes frames on, not a %T", v)
	}
	f.data = data.Materialize()
	if f.short == nil {
		return nil
	}
	var err error
	f.data, err = f.short(f.data)
	return err
}

// Name implements encoding.CodecV2. It is the content's true encoding, and goes into
// the content-type that the runtime sees.
func (frameCodec) Name() string { return "proto" }
