/* Runs the engine on problems from the standard input, in buffers of exactly their sizes, for native/sanitize.py.
 *
 * A problem: kernel (FIRST_TABLES or more: of transform_tables), threads, sizes of the buffers in bytes (0: none), the struct, contents of the buffers.
 * Its answer: what the function returned, and the buffers that it writes. */
#include "native.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

int lambdanets_run(const problem *, int, int, void *, void *);
int lambdanets_transform_tables(const problem *, int);

enum { BUFFERS = 17, FIRST_OUTPUT = 10, SHIFT = 8, FIRST_TABLES = 3 /* numbers of tables in float32, float64 */ };

int main(void) {
#ifdef _WIN32
  _setmode(0, _O_BINARY);
  _setmode(1, _O_BINARY);
#endif
  struct {
    int kernel, threads;
    uint64_t sizes[BUFFERS];
  } header;
  problem p;
  while (fread(&header, sizeof header, 1, stdin) == 1 && fread(&p, sizeof p, 1, stdin) == 1) {
    const void **fields[BUFFERS] = {
        (const void **)&p.axes[0].twiddles[0], (const void **)&p.axes[0].twiddles[1], (const void **)&p.axes[1].twiddles[0],
        (const void **)&p.axes[1].twiddles[1], &p.queries, &p.values, &p.content, &p.cross, &p.table, &p.grad_output,
        (const void **)&p.spectrum, (const void **)&p.output, (const void **)&p.grad_queries, (const void **)&p.grad_values,
        (const void **)&p.grad_spectra, (const void **)&p.grad_content, (const void **)&p.grad_table};
    char *memory[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
      /* Tensors may begin at any element, but malloc aligns to vectors of 16 bytes. */
      memory[i] = header.sizes[i] ? malloc(header.sizes[i] + SHIFT) : 0;
      *fields[i] = memory[i] ? memory[i] + SHIFT : 0;
      if (header.sizes[i] && (!memory[i] || fread(memory[i] + SHIFT, header.sizes[i], 1, stdin) != 1)) return 2;
    }
    int status = header.kernel < FIRST_TABLES ? lambdanets_run(&p, header.kernel, header.threads, 0, 0)
                                              : lambdanets_transform_tables(&p, header.kernel == FIRST_TABLES);
    fwrite(&status, sizeof status, 1, stdout);
    for (int i = 0; i < BUFFERS; i++) {
      if (i >= FIRST_OUTPUT && memory[i]) fwrite(memory[i] + SHIFT, header.sizes[i], 1, stdout);
      free(memory[i]);
    }
    fflush(stdout);
  }
  return 0;
}
