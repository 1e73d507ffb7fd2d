"""python -m lambdanets"""

from lambdanets.cli import console

if __name__ == "__main__":  # worker processes that are started afresh import it under another name
    console()
